"""Rules about files: manifests against the package, frozen copies, budgets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tools.steplib.book import PACKAGE, Chapter
from tools.steplib.lint import Lint
from tools.steplib.shelf import started
from tools.steplib.show import MAX_SUPERSEDED, MAX_VERSIONS, count_lines


def check(lint: Lint) -> None:
    """Apply the rules of this module."""
    _manifests(lint)
    _package(lint)
    _frozen(lint)
    _budgets(lint)


def _manifests(lint: Lint) -> None:
    present: dict[str, Chapter] = {}
    for chapter in lint.book.chapters:
        for path in chapter.touched:
            if chapter.touched.count(path) > 1:
                lint.report_key(chapter, path, f"{path} is named twice")
        for path in [*chapter.add, *chapter.early]:
            if path in present:
                where = present[path].id
                lint.report_key(
                    chapter, path, f"adds {path}, which {where} added already"
                )
        for path in chapter.change:
            if path not in present:
                lint.report_key(
                    chapter, path, f"changes {path}, which is not there"
                )
        present |= {
            path: chapter for path in chapter.touched if path not in present
        }
        for path, when in chapter.early.items():
            if not when.startswith("ch") or when <= chapter.id:
                message = f'early {path}: name a later chapter like "ch15", not {when}'
                lint.report_key(chapter, path, message)


def files_under(folder: Path) -> Iterator[Path]:
    """Every file below `folder`, compiled Python left out."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _package(lint: Lint) -> None:
    book = lint.book
    package = book.root / PACKAGE
    known = set(book.paths) | _practised(book.root)
    last = book.chapters[-1]
    for path in files_under(package):
        name = path.relative_to(package).as_posix()
        if name not in known:
            lint.report(path, 1, last, "no manifest names this file")
    for name in book.paths:
        if not (package / name).is_file():
            owner = book.owners(name)[-1]
            lint.report_key(owner, name, f"{PACKAGE}/{name} does not exist")
    listed = {name for chapter in book.chapters for name in chapter.tests}
    for path in sorted((book.root / "tests").glob("test_ch[0-9][0-9]_*.py")):
        if f"tests/{path.name}" not in listed:
            lint.report(path, 1, last, "no manifest names this test file")


def _practised(root: Path) -> set[str]:
    """Package files that a worktree of `start` has from the starters there."""
    if started(root) is None:
        return set()
    starters = root.glob(f"stages/*/exercises/*/starter/{PACKAGE}")
    return {
        path.relative_to(starter).as_posix()
        for starter in starters
        for path in files_under(starter)
    }


def _frozen(lint: Lint) -> None:
    book = lint.book
    wanted: set[Path] = set()
    for name in book.paths:
        owners = list(dict.fromkeys(c.number for c in book.owners(name)))
        for old, new in pairwise(owners):
            chapter, successor = book.chapters[old], book.chapters[new]
            copy = chapter.frozen(name)
            wanted.add(copy)
            newer = book.source(name, new)
            if not copy.is_file():
                where = copy.relative_to(book.root)
                lint.report_key(
                    chapter, name, f"frozen copy {where} is missing"
                )
            elif newer and lint.sources.text(copy) == lint.sources.text(newer):
                message = f"the same text as its successor in {successor.id}"
                lint.report(copy, 1, chapter, message)
    for chapter in book.chapters:
        for path in files_under(chapter.dir / "files"):
            if path not in wanted:
                lint.report(path, 1, chapter, _superfluous(chapter, path))


def _superfluous(chapter: Chapter, path: Path) -> str:
    inner = path.relative_to(chapter.dir / "files")
    if inner.parts[0] != PACKAGE:
        return f"frozen copies lie under files/{PACKAGE}/"
    if inner.relative_to(PACKAGE).as_posix() not in chapter.touched:
        return f"superfluous frozen copy: {chapter.id} does not own this file"
    return "superfluous frozen copy: no later chapter changes this file"


def _budgets(lint: Lint) -> None:
    book = lint.book
    final = superseded = 0
    for name in book.paths:
        owners = list(dict.fromkeys(c.number for c in book.owners(name)))
        if len(owners) > MAX_VERSIONS:
            message = (
                f"{len(owners)} versions of {name}, at most {MAX_VERSIONS}"
            )
            lint.report_key(book.chapters[owners[-1]], name, message)
        sources = [book.source(name, n) for n in owners]
        *older, last = (count_lines(lint.sources.text(s)) for s in sources if s)
        final, superseded = final + last, superseded + sum(older)
    if superseded > MAX_SUPERSEDED * final:
        lint.report(
            book.root / "stages",
            1,
            book.chapters[-1],
            f"{superseded} superseded lines, at most {MAX_SUPERSEDED:g}x of the "
            f"{final} final ones",
        )
