"""Checks chapters: each in a fresh build folder, its processes forked and guarded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from tools.steplib import exercises, lint, probes, sandbox, show
from tools.steplib.book import Book, Chapter, ManifestError
from tools.steplib.checkcache import Cache, input_hash
from tools.steplib.checkfull import Full
from tools.steplib.checkresult import Failure, Result
from tools.steplib.exercises import Exercise
from tools.steplib.forks import Task
from tools.steplib.judge import Judge
from tools.steplib.proofs import Proofs
from tools.steplib.workplace import TESTS_LIMIT, Workplace, workplace

MAIN_LIMIT = 300.0


@dataclass(frozen=True)
class Options:
    """How to check: all but `workers` change what a result says."""

    model: str = ""
    full: bool = False
    workers: int = 0
    fresh: bool = False
    bless: bool = False


class Checker:
    """Checks chapters of one book in one scratch folder."""

    def __init__(self, book: Book, options: Options) -> None:
        self.book, self.options = book, options
        self.cache = Cache(book.root)
        self.hashes: dict[int, str] = {}

    def cached(self, chapter: Chapter) -> Result | None:
        """The kept result of a chapter none of whose inputs changed."""
        if self._missing(chapter):
            return None
        model, full = self.options.model, self.options.full
        inputs = input_hash(self.book, chapter, model)
        self.hashes[chapter.number] = inputs
        if self.options.fresh or self.options.bless:
            return None
        kept = self.cache.load(inputs, full)
        return Result.from_dict(kept | {"cached": True}) if kept else None

    def _missing(self, chapter: Chapter) -> list[Failure]:
        """Files of the chapter's build folder that are not there."""
        sources = sandbox.inputs(self.book, chapter).values()
        lost = sorted({p for p in sources if not p.is_file()})
        root = self.book.root
        return [
            Failure(p.relative_to(root).as_posix(), "missing") for p in lost
        ]

    def run(
        self, chapters: list[Chapter], only_changed: bool
    ) -> Iterator[Result]:
        """Check the chapters; their results in order, each when it is there."""
        kept = {c.number: self.cached(c) for c in chapters}
        todo = [c for c in chapters if kept[c.number] is None]
        for number, findings in self._lint(chapters).items():
            if (result := kept[number]) is not None:
                result.failures += findings
        chosen = [
            c
            for c in chapters
            if not only_changed or c in todo or _red(kept[c.number])
        ]
        with self._place() as self.place:
            fresh = self._fresh(todo)
            for chapter in chosen:
                result = kept[chapter.number]
                yield next(fresh) if result is None else result

    def _lint(self, chapters: list[Chapter]) -> dict[int, list[Failure]]:
        self.findings: dict[int, list[Failure]] = {
            c.number: [] for c in chapters
        }
        for finding in lint.run(self.book):
            number = self.book.chapter(finding.chapter).number
            if number in self.findings:
                where = f"{finding.path}:{finding.line}"
                self.findings[number].append(Failure(where, finding.message))
        return self.findings

    def _place(self) -> AbstractContextManager[Workplace]:
        options = self.options
        return workplace(self.book, options.workers, options.model)

    def prove(self, chosen: list[Exercise]) -> Iterator[Result]:
        """Only these exercises; a result for each of their chapters."""
        groups = [
            (c, [*mine]) for c, mine in groupby(chosen, lambda e: e.chapter)
        ]
        with self._place() as self.place:
            pool = self.place.pool([chapter for chapter, _ in groups])
            yield from pool.run([self._prove(*group) for group in groups])

    def _prove(self, chapter: Chapter, chosen: list[Exercise]) -> Task:
        result = Result(chapter.id, chapter.slug)
        full = self.options.full
        proofs = Proofs(self.book, chapter, self.place, full, chosen)
        proofs.judge((yield proofs.jobs()), result)
        return result

    def _fresh(self, chapters: list[Chapter]) -> Iterator[Result]:
        if not chapters:
            return
        pool = self.place.pool(chapters)
        for result in pool.run([self._check(c) for c in chapters]):
            number = int(result.chapter[2:])
            if number in self.hashes:
                dynamic = len(result.failures) > len(self.findings[number])
                kept = result.as_dict() | {"failures": [], "ok": not dynamic}
                self.cache.store(result.chapter, self.hashes[number], kept)
            yield result

    def _check(self, chapter: Chapter) -> Task:
        if missing := self._missing(chapter):
            found = [*self.findings[chapter.number], *missing]
            return Result(chapter.id, chapter.slug, failures=found)
        result = self._counted(chapter)
        static = self.findings[chapter.number]
        result.failures += static
        build = self.place.build(chapter)
        model = self.options.model
        args = ["--model", model] if model else []
        script = build / "stages" / chapter.name / "main.py"
        main = partial(probes.run_main, script, args)
        slow = self.options.full
        tests = partial(probes.run_tests, build, chapter.tests, {}, False, slow)
        job = self.place.job(chapter, build, "tests", tests, TESTS_LIMIT)
        texts = [build / name for name in chapter.tests]
        sizes = [path.stat().st_size for path in texts if path.is_file()]
        ran, tested = yield [
            self.place.job(chapter, build, "main", main, MAIN_LIMIT),
            replace(job, weight=sum(sizes)),
        ]
        judge = Judge(self.book, chapter, result)
        judge.main(ran, MAIN_LIMIT, self.options.bless)
        judge.tests(tested, TESTS_LIMIT)
        if self.options.full and len(result.failures) == len(static):
            make = partial(self.place.job, chapter)
            try:
                full = Full(self.book, chapter, build, tested, make)
                jobs = full.jobs()
            except ValueError as error:  # a stub, an older copy that is missing
                where = f"stages/{chapter.name}/stage.toml"
                result.failures.append(Failure(where, str(error)))
            else:
                full.judge((yield jobs), result)
            known = self._exercises(chapter, result)
            proofs = Proofs(self.book, chapter, self.place, True, known)
            proofs.judge((yield proofs.jobs()), result)
        return result

    def _exercises(self, chapter: Chapter, result: Result) -> list[Exercise]:
        try:
            return exercises.of_chapter(chapter)
        except ManifestError as error:
            where = f"stages/{chapter.name}/{exercises.FOLDER}"
            result.failures.append(Failure(where, str(error)))
            return []

    def _counted(self, chapter: Chapter) -> Result:
        full, model = self.options.full, self.options.model
        result = Result(chapter.id, chapter.slug, full=full, model=model)
        with suppress(ManifestError):  # the copy it is compared with is missing
            row = show.chapter_row(self.book, chapter)
            result.files, result.lines = row.files, row.lines
            result.added, result.removed = row.added, row.removed
        return result


def _red(result: Result | None) -> bool:
    return result is not None and not result.ok
