"""What `check --full` adds: starters turn red for the right reason, mutants die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tools.steplib import mutate, probes, sandbox
from tools.steplib.book import Book, Chapter
from tools.steplib.checkresult import Failure, Result, failure_from, set_owner
from tools.steplib.child import Job
from tools.steplib.forks import Outcome
from tools.steplib.stubs import STAGE, parse_target, stub_source

DRAWN = 20
KILLED = 0.8
MakeJob = Callable[[Path, str, Callable[[], dict[str, Any]], float], Job]


class Full:
    """The red runs of one chapter whose plain run was green."""

    def __init__(
        self,
        book: Book,
        chapter: Chapter,
        build: Path,
        tested: Outcome,
        make: MakeJob,
    ) -> None:
        assert tested.value is not None
        self.book, self.chapter, self.build = book, chapter, build
        self.make = make
        self.order: dict[str, float] = tested.value["seconds"]
        self.limit = 20.0 + 3 * tested.seconds
        self.problems: list[Failure] = []
        self.planned = self._planned()
        self.drawn = self._drawn()

    def _planned(self) -> list[mutate.Mutant]:
        try:
            return mutate.planned(
                self.chapter.mutants, mutate.texts_of(self.book, self.chapter)
            )
        except mutate.MutantError as error:
            where = self.chapter.mutants.relative_to(self.book.root).as_posix()
            self.problems.append(Failure(where, str(error)))
            return []

    def _drawn(self) -> list[mutate.Mutant]:
        n, texts = self.chapter.number, mutate.texts_of(self.book, self.chapter)
        own = [
            p for p in (*self.chapter.add, *self.chapter.change) if p in texts
        ]
        if not own:  # the chapter's engine lies beside its main
            own = [
                p
                for p in texts
                if p.startswith(STAGE) and p != f"{STAGE}main.py"
            ]
        before = {p: self.book.text(p, n - 1) for p in self.chapter.change if n}
        mine = {path: texts[path] for path in own if path.endswith(".py")}
        return mutate.drawn(mine, before, DRAWN, self.chapter.name)

    def jobs(self) -> list[Job]:
        """One run with all stubs, one a stub, one a mutant."""
        stubs, jobs = self.chapter.stubs, []
        if stubs:
            jobs.append(self._starter("stubs", stubs, first=False))
        jobs += [
            self._starter(f"stub{i}", [target], first=True)
            for i, target in enumerate(stubs)
        ]
        for i, mutant in enumerate([*self.planned, *self.drawn]):
            edits = {sandbox.place(self.chapter, mutant.path): mutant.text}
            jobs.append(self._mutant(f"mutant{i}", edits))
        return jobs

    def _mutant(self, name: str, edits: dict[str, str]) -> Job:
        build, setup = sandbox.variant(self.build, name, edits)
        tests = self.chapter.tests
        body = partial(probes.run_tests, build, tests, self.order, True)
        return replace(self.make(build, "tests", body, self.limit), setup=setup)

    def _starter(self, name: str, targets: list[str], first: bool) -> Job:
        names: dict[str, list[str]] = {}
        for target in targets:
            path, function = parse_target(target)
            names.setdefault(sandbox.place(self.chapter, path), []).append(
                function
            )
        edits = {
            path: stub_source((self.build / path).read_text("utf-8"), functions)
            for path, functions in names.items()
        }
        build, setup = sandbox.variant(self.build, name, edits)
        main = build / "stages" / self.chapter.name / "main.py"
        tests, order = self.chapter.tests, self.order
        body = partial(probes.run_starter, build, main, tests, order, first)
        return replace(
            self.make(build, "starter", body, self.limit), setup=setup
        )

    def judge(self, outcomes: list[Outcome], result: Result) -> None:
        """Put what the red runs showed into the chapter's result."""
        result.failures += self.problems
        stubs, rest = self.chapter.stubs, outcomes
        if stubs:
            together, singles = outcomes[0], outcomes[1 : 1 + len(stubs)]
            rest = outcomes[1 + len(stubs) :]
            red = [
                self._starter_red(name, outcome, result)
                for name, outcome in zip(stubs, singles, strict=True)
            ]
            result.starters = [sum(red), len(red)]
            self._starter_red("all stubs together", together, result)
        n = len(self.planned)
        self._judge_planned(rest[:n], result)
        self._judge_drawn(rest[n:], result)

    def _starter_red(self, name: str, outcome: Outcome, result: Result) -> bool:
        where = f"stages/{self.chapter.name}/stage.toml"
        if outcome.value is None:
            why = "no end in time" if outcome.timed_out else "the run died"
            result.failures.append(Failure(where, f"starter of {name}: {why}"))
            return False
        failures = outcome.value["failures"]
        if not failures:
            text = f"starter of {name}: main and tests stay green"
            result.failures.append(Failure(where, text))
        for record in failures:
            if not record["stub"]:
                failure = failure_from(self.book, self.chapter, record)
                failure.message = (
                    f"starter of {name} is red for another reason than "
                    f"NotImplementedError: {failure.message}"
                )
                result.failures.append(failure)
        return bool(failures) and all(record["stub"] for record in failures)

    def _judge_planned(self, outcomes: list[Outcome], result: Result) -> None:
        killed = [_killed(outcome) for outcome in outcomes]
        if self.planned or self.problems:
            result.mutants = [sum(killed), len(killed)]
        for mutant, dead in zip(self.planned, killed, strict=True):
            if not dead:
                path = sandbox.place(self.chapter, mutant.path)
                text = f"mutant survives the chapter's tests: {mutant.edit}"
                failure = Failure(f"{path}:{mutant.line}", text)
                set_owner(self.book, self.chapter, path, failure)
                result.failures.append(failure)

    def _judge_drawn(self, outcomes: list[Outcome], result: Result) -> None:
        if not self.drawn:
            return
        killed = [_killed(outcome) for outcome in outcomes]
        result.random = [sum(killed), len(killed)]
        for mutant, dead in zip(self.drawn, killed, strict=True):
            if not dead:
                path = sandbox.place(self.chapter, mutant.path)
                result.survivors.append(f"{path}:{mutant.line}: {mutant.edit}")
        if sum(killed) < KILLED * len(killed):
            text = f"random mutations: {sum(killed)} of {len(killed)} killed, "
            where = f"stages/{self.chapter.name}"
            result.failures.append(Failure(where, text + f"want {KILLED:.0%}"))


def _killed(outcome: Outcome) -> bool:
    return outcome.value is None or bool(outcome.value["failures"])
