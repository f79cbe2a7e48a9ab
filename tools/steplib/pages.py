"""Pages of the book and the generated blocks in them.

A block opens with ``<!-- KIND: ARGUMENT -->`` on a line of its own and ends with
``<!-- /KIND -->``; both may be indented alike, and so is then what stands between.
Lines inside a code fence are no markers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

KINDS = (
    "code",
    "tree",
    "diff",
    "output",
    "upstream",
    "table",
    "exercises",
    "diagram",
    "film",
)
LANGUAGES = ("en", "zh")
TAG_NOTE = "stages/TAG.md"  # lies in the trees of tags only
_OPEN = re.compile(rf"( *)<!-- ({'|'.join(KINDS)})(?:: *(.*?))? *-->")
_CLOSE = re.compile(rf" *<!-- /({'|'.join(KINDS)}) *-->")
_FENCE = re.compile(r" *(`{3,}|~{3,})")


class BlockError(ValueError):
    """A block of a page is wrong; the message starts with page:line."""


@dataclass(frozen=True)
class Block:
    """A generated block: `start` and `end` are the lines of its markers, from 0."""

    kind: str
    argument: str
    indent: str
    start: int
    end: int


@dataclass(frozen=True)
class Page:
    """A Markdown file of the book."""

    path: Path
    name: str  # from the checkout's root, for messages
    text: str

    @property
    def language(self) -> str:
        return self.name.split("/")[1]

    @property
    def chapter(self) -> int | None:
        """The chapter's number, None for a general page."""
        match = re.fullmatch(r"ch(\d\d)-[a-z0-9-]+\.md", self.path.name)
        return int(match[1]) if match else None

    def blocks(self) -> list[Block]:
        """The page's generated blocks in order.

        Raises:
            BlockError: a marker has no partner.
        """
        found: list[Block] = []
        opened: tuple[int, re.Match[str]] | None = None
        fence = ""
        for at, line in enumerate(self.text.split("\n")):
            if opened is None and (mark := _FENCE.match(line)):
                if not fence:
                    fence = mark[1]
                elif mark[1].startswith(fence) and line.strip() == mark[1]:
                    fence = ""
                continue
            if fence:
                continue
            if start := _OPEN.fullmatch(line):
                if opened is not None:
                    raise self._unclosed(*opened)
                opened = (at, start)
            elif end := _CLOSE.fullmatch(line):
                if opened is None:
                    raise BlockError(
                        f"{self.name}:{at + 1}: {end[0].strip()} unopened"
                    )
                first, start = opened
                if end[1] != start[2]:
                    raise self._unclosed(first, start)
                found.append(
                    Block(start[2], start[3] or "", start[1], first, at)
                )
                opened = None
        if opened is not None:
            raise self._unclosed(*opened)
        return found

    def _unclosed(self, at: int, start: re.Match[str]) -> BlockError:
        return BlockError(
            f"{self.name}:{at + 1}: {start[0].strip()} is not closed by "
            f"<!-- /{start[2]} -->"
        )


def read_pages(root: Path) -> list[Page]:
    """All pages of both languages, sorted by path."""
    paths = [
        p for lang in LANGUAGES for p in (root / "docs" / lang).rglob("*.md")
    ]
    return [
        Page(p, p.relative_to(root).as_posix(), p.read_text(encoding="utf-8"))
        for p in sorted(paths)
    ]


def is_tag_tree(root: Path) -> bool:
    """Whether the checkout is a tag's tree, which ends at its chapter."""
    return (root / TAG_NOTE).is_file()
