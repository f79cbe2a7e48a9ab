"""Facts about chapters that the reading commands print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from pathlib import Path

from tools.steplib.book import PACKAGE, Book, Chapter
from tools.steplib.venv import main_checkout

MAX_VERSIONS = 6
MAX_SUPERSEDED = 2.0


@dataclass(frozen=True)
class Row:
    """One chapter in `list`; files and lines are those of its whole package."""

    chapter: str
    title: str
    part: int
    files: int
    lines: int
    added: int
    removed: int
    swaps: str
    last_check: str


@dataclass(frozen=True)
class Entry:
    """One file of the package at a chapter; mark is new, changed, early or empty."""

    path: str
    mark: str
    lines: int
    owner: str
    source: str


@dataclass(frozen=True)
class Version:
    """One version of a file: who holds it, from where to where it is in force."""

    chapter: str
    verb: str
    first: str
    last: str
    lines: int
    source: str


@dataclass(frozen=True)
class Churn:
    """How often a file is rewritten: superseded counts the lines of older versions."""

    path: str
    versions: int
    lines: int
    superseded: int


def overview(book: Book, language: str = "en") -> list[Row]:
    """One row a chapter. ch00 has no package: its own engine.py is counted."""
    checks = last_checks(book.root)
    return [
        chapter_row(book, c, language, checks.get(c.id, ""))
        for c in book.chapters
    ]


def chapter_row(
    book: Book, chapter: Chapter, language: str = "en", check: str = ""
) -> Row:
    """One chapter's row."""
    n = chapter.number
    tree = book.tree(n)
    lines = sum(count_lines(book.text(path, n)) for path in tree)
    changes = [_plus_minus(*_both(book, path, n)) for path in chapter.touched]
    added, removed = (sum(change[i] for change in changes) for i in (0, 1))
    files, engine = len(tree), chapter.dir / "engine.py"
    if n == 0 and engine.is_file():
        own = count_lines(engine.read_text(encoding="utf-8"))
        files, lines, added = files + 1, lines + own, added + own
    title = chapter.title.get(language) or chapter.title.get("en", chapter.slug)
    sides = [chapter.swaps.get(k, "").split("::")[-1] for k in ("old", "new")]
    swaps = " -> ".join(sides) if any(sides) else ""
    return Row(
        chapter.id,
        title,
        chapter.part,
        files,
        lines,
        added,
        removed,
        swaps,
        check,
    )


def last_checks(root: Path) -> dict[str, str]:
    """Chapter id -> ``ok WHEN`` or ``failed WHEN``, as the last `check` left it."""
    path = main_checkout(root) / ".cache/check/status.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {
            key: f"{'ok' if value['ok'] else 'failed'} {value.get('when', '')}".strip()
            for key, value in data.items()
        }
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return {}  # a cache: absent or half written means that nothing is known


def count_lines(text: str) -> int:
    """Lines of a text, the last one counted whether or not it ends in a newline."""
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def _both(book: Book, path: str, n: int) -> tuple[str, str]:
    return (book.text(path, n - 1) if n else ""), book.text(path, n)


def _plus_minus(old: str, new: str) -> tuple[int, int]:
    if not old:
        return count_lines(new), 0
    added = removed = 0
    matcher = SequenceMatcher(
        None, old.splitlines(), new.splitlines(), autojunk=False
    )
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            removed, added = removed + i2 - i1, added + j2 - j1
    return added, removed


def package_at(book: Book, n: int) -> list[Entry]:
    """The files of the package at chapter `n`, sorted by path."""
    chapter = book.chapter(n)
    marks = dict.fromkeys(chapter.add, "new") | dict.fromkeys(
        chapter.change, "changed"
    )
    marks |= {path: f"early ({when})" for path, when in chapter.early.items()}
    entries = []
    for path, source in book.tree(n).items():
        owner = book.owner(path, n)
        entries.append(
            Entry(
                path=path,
                mark=marks.get(path, ""),
                lines=count_lines(book.text(path, n)),
                owner=owner.id if owner else "",
                source=source.relative_to(book.root).as_posix(),
            )
        )
    return entries


def versions(book: Book, path: str) -> list[Version]:
    """Every version of `path`, oldest first, with the chapters it is in force."""
    owners = book.owners(path)
    ends = [later.number - 1 for later in owners[1:]] + [book.last]
    found = []
    for owner, end in zip(owners, ends, strict=True):
        source = book.source(path, owner.number)
        assert source is not None
        verb = "changes" if path in owner.change else "adds"
        found.append(
            Version(
                chapter=owner.name,
                verb="adds early" if path in owner.early else verb,
                first=owner.id,
                last=f"ch{end:02d}",
                lines=count_lines(book.text(path, owner.number)),
                source=source.relative_to(book.root).as_posix(),
            )
        )
    return found


def churn(book: Book) -> list[Churn]:
    """Versions and lines of every file, most rewritten first."""
    rows = []
    for path in book.paths:
        *older, final = (v.lines for v in versions(book, path))
        rows.append(Churn(path, len(older) + 1, final, sum(older)))
    return sorted(rows, key=lambda r: (-r.versions, -r.superseded, r.path))


def churn_total(rows: list[Churn]) -> str:
    """One line: the package against both budgets."""
    most = max(rows, key=lambda r: r.versions, default=None)
    if most is None:
        return "no files yet"
    lines, old = sum(r.lines for r in rows), sum(r.superseded for r in rows)
    return (
        f"{len(rows)} files; most versions: {most.versions} of {MAX_VERSIONS} "
        f"({most.path}); superseded lines: {old} = {old / max(lines, 1):.2f}x "
        f"of {lines} final (budget {MAX_SUPERSEDED:g}x)"
    )


def chapter_diff(book: Book, n: int, path: str | None = None) -> Iterator[str]:
    """Unified diff of the package (or of `path`) from chapter ``n - 1`` to `n`."""
    for name in sorted(book.chapter(n).touched) if path is None else [path]:
        old, new = _both(book, name, n)
        before = f"a/{PACKAGE}/{name}" if old else "/dev/null"
        for line in unified_diff(
            old.splitlines(keepends=True),
            new.splitlines(keepends=True),
            before,
            f"b/{PACKAGE}/{name}",
        ):
            yield line if line.endswith("\n") else f"{line}\n"
