"""Grading: the tests of an exercise and of its chapter on a reader's checkout."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tools.steplib import probes
from tools.steplib.book import PACKAGE, Book, ManifestError
from tools.steplib.checkcache import Grades
from tools.steplib.checkresult import failure_from
from tools.steplib.forks import Outcome, Pool, Task
from tools.steplib.gitrepo import GitError, Repo
from tools.steplib.shelf import Item
from tools.steplib.stubs import extract_source
from tools.steplib.workplace import TESTS_LIMIT, Workplace, workplace

EXERCISE_LIMIT = 120.0
SHOWN = 3  # failures of each kind that are told
_SKIP = shutil.ignore_patterns("__pycache__")


@dataclass
class Part:
    """What one set of tests said.

    failures: records of `probes.describe`, the first of each test.
    """

    name: str
    passed: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    problem: str = ""
    report: str = ""
    note: str = ""

    @property
    def green(self) -> bool:
        return self.passed > 0 and not self.failures and not self.problem

    @property
    def unwritten(self) -> list[dict[str, Any]]:
        return [record for record in self.failures if record["stub"]]

    @property
    def wrong(self) -> list[dict[str, Any]]:
        return [record for record in self.failures if not record["stub"]]

    def line(self) -> str:
        """For example ``exercise   3 of 4 tests pass``."""
        total = self.passed + len(self.failures)
        said = f"{self.passed} of {total} tests pass{self.note}"
        said = self.problem or said
        return f"{self.name:10} {said}"


@dataclass
class Verdict:
    """The outcome of grading `item` in the checkout `root`."""

    item: Item
    root: Path
    parts: list[Part]
    changed_tests: list[str]

    @property
    def green(self) -> bool:
        return all(part.green for part in self.parts)

    def lines(self) -> Iterator[str]:
        """The verdict for a reader, without the word red or green."""
        for part in self.parts:
            yield part.line()
        for name in self.changed_tests:
            yield f"note: {name} is changed here; the book's own was run"
        mine, *others = self.parts
        if self.green:
            return
        if mine.green:
            yield "your solution does its task, but breaks what the chapter had:"
        told = mine if not mine.green else others[0]
        if told.failures and not told.wrong:
            yield "red for the right reason: what you write is not written yet"
        for record in told.wrong[:SHOWN]:
            yield from _told(record, self.item, self.root)
        if len(told.wrong) > SHOWN:
            yield f"  and {len(told.wrong) - SHOWN} more (grade -v shows all)"

    def unwritten(self) -> list[str]:
        """``Class.function in file:line`` of what still is not written."""
        found = []
        for path, names in self.item.written().items():
            text = (self.root / path).read_text(encoding="utf-8")
            for name in names:
                try:
                    line, _, source = extract_source(text, name)
                except (ValueError, SyntaxError):
                    continue
                if "raise NotImplementedError(" in source:
                    found.append(f"{name} in {path}:{line}")
        return found


def _told(record: dict[str, Any], item: Item, root: Path) -> Iterator[str]:
    book = Book.load(root)
    failure = failure_from(book, book.chapter(item.chapter.number), record)
    test = record["where"].rpartition("/")[2]
    yield f"  {test}"
    yield f"    {failure.where if failure.test else ''} {failure.message}".rstrip()


def grade(item: Item, root: Path, fresh: bool = False) -> Verdict:
    """Run the tests of `item` and of its chapter on the files of `root`.

    The tests are those of the tag, whatever the reader changed in them. What was
    green with the same files is not run again, unless `fresh`; the chapter's tests
    wait for those of an exercise.

    Raises:
        ManifestError: a file that belongs there is missing.
    """
    book = Book.load(root)
    chapter = book.chapter(item.chapter.number)
    with workplace(book) as place:
        try:
            build = place.build(chapter)
        except FileNotFoundError as error:
            name = Path(error.filename).relative_to(root)
            raise ManifestError(
                f"{name} is missing in {root}: git restore {name}"
            ) from None
        if (root / PACKAGE).is_dir():  # files that no manifest knows, too
            shutil.copytree(
                root / PACKAGE,
                build / PACKAGE,
                ignore=_SKIP,
                dirs_exist_ok=True,
            )
        sets = {"chapter": chapter.tests}
        if item.exercise is not None:
            sets = {"exercise": item.tests()} | sets
        changed = _lay_tests(
            item, root, build, [n for s in sets.values() for n in s]
        )
        grades = Grades(root, build)
        parts = {} if fresh else _kept(grades, sets)
        if todo := {n: t for n, t in sets.items() if n not in parts}:
            pool: Pool = place.pool([chapter])
            (ran,) = pool.run([_run(place, item, build, todo)])
            for part in ran:
                parts[part.name] = part
                if part.green:
                    grades.store(part.name, part.passed)
    return Verdict(item, root, [parts[name] for name in sets], changed)


def _kept(grades: Grades, sets: dict[str, list[str]]) -> dict[str, Part]:
    """The parts that were green, up to the first that was not."""
    parts = {}
    for name in sets:
        passed = grades.load(name)
        if passed is None:
            break
        parts[name] = Part(name, passed, note=", as nothing has changed")
    return parts


def _lay_tests(
    item: Item, root: Path, build: Path, names: list[str]
) -> list[str]:
    """Copy the tests into the build folder; return those changed by the reader."""
    changed = []
    try:
        repo = Repo(root)
        kept = repo.files(f"refs/tags/{item.chapter.id}-done")
    except GitError:
        kept = {}
    for name in names:
        mine = (root / name).read_bytes() if (root / name).is_file() else b""
        text = repo.read(kept[name].blob) if name in kept else mine
        if text != mine:
            changed.append(name)
        (build / name).parent.mkdir(parents=True, exist_ok=True)
        (build / name).write_bytes(text)
    return changed


def _run(
    place: Workplace, item: Item, build: Path, sets: dict[str, list[str]]
) -> Task:
    parts: list[Part] = []
    for name, tests in sets.items():
        if parts and not parts[-1].green:
            parts.append(Part(name, problem="not run before that is green"))
            continue
        body = partial(probes.run_tests, build, tests, {}, False)
        limit = EXERCISE_LIMIT if name == "exercise" else TESTS_LIMIT
        chapter = place.book.chapter(item.chapter.number)
        (outcome,) = yield [place.job(chapter, build, name, body, limit)]
        parts.append(_part(name, limit, outcome))
    return parts


def _part(name: str, limit: float, outcome: Outcome) -> Part:
    report = outcome.stdout + outcome.stderr
    value = outcome.value
    if value is None:
        why = f"no end after {limit:.0f} s: a loop that does not end?"
        tail = outcome.stderr.strip().splitlines()[-1:] or [""]
        died = f"the run died: {tail[0]}"
        problem = why if outcome.timed_out else died
        return Part(name, problem=problem, report=report)
    first = {record["where"]: record for record in reversed(value["failures"])}
    failures = [*reversed(first.values())]
    leak = outcome.leaks[0] if outcome.leaks else ""
    problem = f"code from outside the checkout ran: {leak}" if leak else ""
    return Part(name, len(value["passed"]), failures, problem, report)
