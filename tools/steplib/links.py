"""Relative links of the Markdown files lead somewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_FENCE = re.compile(
    r"^ *(`{3,}|~{3,}).*?^ *\1`*~* *$", re.MULTILINE | re.DOTALL
)
_INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#")


def targets(text: str) -> Iterator[tuple[int, str]]:
    """(line, target) of each link or image that is relative; code is left out."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = _INLINE_CODE.sub(blank, _FENCE.sub(blank, text))
    for match in _LINK.finditer(text):
        if not _ELSEWHERE.match(match[1]):
            yield text.count("\n", 0, match.start()) + 1, match[1]


def broken(root: Path, pages: list[Path]) -> list[str]:
    """``page:line: target`` of each link to a file that does not exist."""
    lines = []
    for page in pages:
        for line, target in targets(page.read_text(encoding="utf-8")):
            path = page.parent / unquote(target.partition("#")[0])
            if not path.exists():
                where = page.relative_to(root).as_posix()
                lines.append(f"{where}:{line}: nothing at {target}")
    return lines


def main() -> None:
    """Check the repository's own Markdown files and the book's pages."""
    root = Path(__file__).resolve().parents[2]
    pages = sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")])
    lines = broken(root, pages)
    print(
        "\n".join(lines) or f"{len(pages)} files, every relative link resolves"
    )
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
