"""What `check` found out about a chapter, and how it says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.steplib.book import PACKAGE, Book, Chapter


@dataclass
class Failure:
    """One thing that is wrong: where, what, and whose text it is."""

    where: str
    message: str
    test: str = ""
    owner: str = ""
    text: str = ""

    def lines(self) -> Iterator[str]:
        yield f"{self.where}: {self.message}"
        if self.test:
            yield f"  in     {self.test}"
        if self.owner:
            yield f"  owner  {self.owner}, text in {self.text}"


@dataclass
class Result:
    """One chapter's line. Pairs are (how many did, of how many)."""

    chapter: str
    slug: str
    files: int = 0
    lines: int = 0
    added: int = 0
    removed: int = 0
    main_seconds: float | None = None
    tests: int = 0
    parity: int = 0
    skips: list[str] = field(default_factory=list)
    starters: list[int] = field(default_factory=list)
    mutants: list[int] = field(default_factory=list)
    random: list[int] = field(default_factory=list)
    survivors: list[str] = field(default_factory=list)
    exercises: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    full: bool = False
    model: str = ""
    cached: bool = False

    @property
    def ok(self) -> bool:
        return not self.failures

    def as_dict(self) -> dict[str, Any]:
        """Plain data, with ``ok`` added."""
        return asdict(self) | {"ok": self.ok}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Result:
        """Undo `as_dict`."""
        rest = {k: v for k, v in data.items() if k not in {"ok", "failures"}}
        return cls(**rest, failures=[Failure(**f) for f in data["failures"]])

    def line(self) -> str:
        """For example ``ch09 radix-cache  31 files 1,912 lines +237 -12  ...  ok``."""
        parts = [
            f"{self.chapter} {self.slug}",
            f"{self.files} files {self.lines:,} lines +{self.added} -{self.removed}",
        ]
        if self.main_seconds is not None:
            parts.append(f"main {self.main_seconds:.1f}s")
        parts += [f"tests {self.tests}", f"parity {self.parity}"]
        if self.skips:
            parts.append(f"skips {len(self.skips)}")
        named = {"starter red": self.starters, "mutants": self.mutants}
        named |= {"random": self.random, "exercises": self.exercises}
        for name, pair in named.items():
            if pair:
                parts.append(f"{name} {pair[0]}/{pair[1]}")
        return "  ".join([*parts, self.verdict()])

    def verdict(self) -> str:
        """``FAIL``, ``skipped``, or ``ok``; with skips it is never ``ok``."""
        word = "FAIL" if self.failures else "skipped" if self.skips else "ok"
        return f"{word}  cached" if self.cached else word

    def details(self) -> Iterator[str]:
        """The lines below the chapter's line."""
        for failure in self.failures:
            yield from failure.lines()
        if self.failures:
            full = " --full" if self.full else ""
            model = f" --model {self.model}" if self.model else ""
            number = int(self.chapter[2:])
            yield f"again: python tools/steps.py check --only {number}{full}{model}"
        yield from (f"skipped: {skip}" for skip in self.skips)
        yield from (f"survived: {survivor}" for survivor in self.survivors)


def failure_from(
    book: Book, chapter: Chapter, record: dict[str, Any]
) -> Failure:
    """A probe's record as a failure, its place found in the repository."""
    frames: list[tuple[str, int]] = [(p, n) for p, n in record["frames"]]
    inner = [f for f in frames if f[0].startswith(f"{PACKAGE}/")] or frames
    message = f"{record['type']}: {record['message']}".rstrip(": ")
    if not inner:
        return Failure(record["where"], message)
    path, line = inner[-1]
    failure = Failure(f"{path}:{line}", message, test=record["where"])
    set_owner(book, chapter, path, failure)
    return failure


def set_owner(
    book: Book, chapter: Chapter, path: str, failure: Failure
) -> None:
    """Name the chapter that holds the text of package file `path`, and the text."""
    package = path.removeprefix(f"{PACKAGE}/")
    owner = book.owner(package, chapter.number)
    source = book.source(package, chapter.number)
    if (
        path.startswith(f"{PACKAGE}/")
        and owner is not None
        and source is not None
    ):
        failure.owner = owner.name
        failure.text = source.relative_to(book.root).as_posix()


def totals(results: list[Result], seconds: float) -> str:
    """One line over all chapters."""
    failed = [r for r in results if not r.ok]
    skipped = [r for r in results if r.ok and r.skips]
    good = len(results) - len(failed) - len(skipped)
    text = f"{len(results)} chapters: {good} ok"
    if skipped:
        text += f", {len(skipped)} with skips ({sum(len(r.skips) for r in skipped)})"
    if failed:
        text += (
            f", {len(failed)} FAILED ({' '.join(r.chapter for r in failed)})"
        )
    tests, parity = (
        sum(r.tests for r in results),
        sum(r.parity for r in results),
    )
    return f"{text}; {tests} tests, {parity} of them parity; {seconds:.1f} s"
