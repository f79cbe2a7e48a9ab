"""Checks chapters: each in a fresh build folder, its processes forked and guarded."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tools.steplib import guard, lint, probes, sandbox, show
from tools.steplib.book import Book, Chapter, ManifestError
from tools.steplib.checkcache import Cache, input_hash
from tools.steplib.checkfull import Full
from tools.steplib.checkresult import Failure, Result
from tools.steplib.child import Job
from tools.steplib.forks import Pool, Task
from tools.steplib.judge import Judge
from tools.steplib.preload import preload

MAIN_LIMIT = 300.0
TESTS_LIMIT = 900.0


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
        cpus = _cpus()
        self.workers = options.workers or cpus
        self.threads = max(1, cpus // self.workers)
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
        with tempfile.TemporaryDirectory(prefix="steps-") as folder:
            self.work = Path(folder).resolve()
            self.hooks = sandbox.make_hooks(self.work)
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

    def _fresh(self, chapters: list[Chapter]) -> Iterator[Result]:
        if not chapters:
            return
        texts = {
            source
            for chapter in chapters
            for name, source in sandbox.inputs(self.book, chapter).items()
            if name.endswith(".py") and not name.startswith("tools/")
            if source.is_file()
        }
        # OpenMP and BLAS read these when they are imported, before any fork.
        os.environ.update(sandbox.quiet({}, self.threads, ""))
        preload([path.read_text(encoding="utf-8") for path in sorted(texts)])
        pool = Pool(self.workers)
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
        build = sandbox.make_build(self.book, chapter, self.work / chapter.id)
        model = self.options.model
        args = ["--model", model] if model else []
        script = build / "stages" / chapter.name / "main.py"
        main = partial(probes.run_main, script, args)
        tests = partial(probes.run_tests, build, chapter.tests, {}, False)
        ran, tested = yield [
            self.job(chapter, build, "main", main, MAIN_LIMIT),
            self.job(chapter, build, "tests", tests, TESTS_LIMIT),
        ]
        judge = Judge(self.book, chapter, result)
        judge.main(ran, MAIN_LIMIT, self.options.bless)
        judge.tests(tested, TESTS_LIMIT)
        if self.options.full and len(result.failures) == len(static):
            make = partial(self.job, chapter)
            try:
                full = Full(self.book, chapter, build, tested, make)
                jobs = full.jobs()
            except ValueError as error:  # a stub, an older copy that is missing
                where = f"stages/{chapter.name}/stage.toml"
                result.failures.append(Failure(where, str(error)))
            else:
                full.judge((yield jobs), result)
        return result

    def _counted(self, chapter: Chapter) -> Result:
        full, model = self.options.full, self.options.model
        result = Result(chapter.id, chapter.slug, full=full, model=model)
        with suppress(ManifestError):  # the copy it is compared with is missing
            row = show.chapter_row(self.book, chapter)
            result.files, result.lines = row.files, row.lines
            result.added, result.removed = row.added, row.removed
        return result

    def job(
        self,
        chapter: Chapter,
        build: Path,
        name: str,
        body: Callable[[], dict[str, Any]],
        limit: float,
    ) -> Job:
        """A job in `build` with the chapter's environment."""
        env = sandbox.environment(self.book, chapter, build, self.hooks)
        env = sandbox.quiet(env, self.threads, self.options.model)
        env[guard.LEAKS] = str(build.parent / f"{build.name}.{name}.leaks")
        return Job(name, build, body, limit, env, self.threads)


def _cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _red(result: Result | None) -> bool:
    return result is not None and not result.ok
