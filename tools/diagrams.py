"""Draw the book's diagrams: one SVG a picture and language.

The block `<!-- diagram: NAME -->` of a page shows it; `steps.py docs` writes both.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import typer  # noqa: E402

from tools.drawing.canvas import DrawingError  # noqa: E402
from tools.drawing.registry import DIAGRAMS, draw  # noqa: E402


def files(root: Path) -> dict[Path, str]:
    """Every diagram's file and text."""
    draw("prefill-decode", "en")  # registers all
    return {
        root / "docs" / language / "diagrams" / f"{name}.svg": draw(
            name, language
        ).svg()
        for name in sorted(DIAGRAMS)
        for language in ("en", "zh")
    }


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Prove that the files are current.")
    ] = False,
) -> None:
    """Write docs/*/diagrams/*.svg, or prove that they are current."""
    try:
        wanted = files(ROOT)
    except DrawingError as error:
        raise SystemExit(f"error: {error}") from None
    stale = [
        path
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    found = set((ROOT / "docs").glob("*/diagrams/*.svg"))
    extra = sorted(found - set(wanted))
    for path in [] if check else stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    for path in [] if check else extra:
        path.unlink()
    for path in stale + extra:
        typer.echo(
            f"{path.relative_to(ROOT)}: {'not current' if check else 'written'}"
        )
    if check and (stale or extra):
        typer.echo("run python tools/diagrams.py", err=True)
        raise typer.Exit(1)
    typer.echo(f"diagrams: {len(wanted)} files are current")


if __name__ == "__main__":
    typer.run(main)
