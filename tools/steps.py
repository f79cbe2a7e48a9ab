"""The stage checker: chapters, what they change, and the proof that they hold.

Every ``tools/steplib/cmd_*.py`` brings its commands through ``register(app)``.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

from tools.steplib import venv  # noqa: E402


def main() -> None:
    """Find a fitting interpreter, gather the commands, run one."""
    venv.ensure(ROOT)

    import typer

    from tools.steplib.book import ManifestError

    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def describe() -> None:
        """The chapters of the book and the machine that checks them."""

    for path in sorted((ROOT / "tools/steplib").glob("cmd_*.py")):
        importlib.import_module(f"tools.steplib.{path.stem}").register(app)
    try:
        app()
    except ManifestError as error:
        typer.echo(str(error), err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
