"""The static rules of the book: what they look at and what they report."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tools.steplib.book import PACKAGE, Book, Chapter
from tools.steplib.facts import Modules, Sources


@dataclass(frozen=True, order=True)
class Finding:
    """One broken rule; `path` is relative to the repository's root."""

    path: str
    line: int
    chapter: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.chapter}: {self.message}"


@dataclass
class Lint:
    """The book under examination and the findings so far."""

    book: Book
    sources: Sources = field(default_factory=Sources)
    findings: list[Finding] = field(default_factory=list)

    def report(
        self, path: Path, line: int, chapter: Chapter, message: str
    ) -> None:
        """Add a finding at ``path:line``."""
        name = path.relative_to(self.book.root).as_posix()
        self.findings.append(Finding(name, line, chapter.id, message))

    def report_key(
        self, chapter: Chapter, value: str, message: str, key: str = ""
    ) -> None:
        """Add a finding at the manifest's line that names `value` (under `key`)."""
        path = chapter.dir / "stage.toml"
        lines = self.sources.text(path).split("\n")
        starts = (
            i for i, line in enumerate(lines) if key and line.startswith(key)
        )
        start = next(starts, 0)
        quoted = f'"{value}"'
        hits = (
            i for i, text in enumerate(lines, 1) if i > start and quoted in text
        )
        self.report(path, next(hits, 1), chapter, message)

    @cached_property
    def modules(self) -> list[Modules]:
        """The package's modules at each chapter."""
        count = len(self.book.chapters)
        trees = (self.book.tree(n) for n in range(count))
        return [Modules(PACKAGE, tree, self.sources) for tree in trees]

    def tests(self, chapter: Chapter) -> list[Path]:
        """The chapter's test files that exist."""
        paths = (self.book.root / name for name in chapter.tests)
        return [path for path in paths if path.is_file()]


def run(book: Book) -> list[Finding]:
    """Apply every rule; findings sorted by place, each one once."""
    from tools.steplib import (
        lint_exercises,
        lint_files,
        lint_imports,
        lint_mutants,
        lint_texts,
    )

    lint = Lint(book)
    for module in (
        lint_files,
        lint_imports,
        lint_texts,
        lint_exercises,
        lint_mutants,
    ):
        module.check(lint)
    return sorted(set(lint.findings))
