"""What is proven of the exercises of a chapter.

Always: the starter is red with NotImplementedError and nothing else, the solution is
green. In full also: the chapter's own tests stay green with the solution, a function
that does nothing is red, and so is every wrong solution of mutants.toml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial

from tools.steplib import exercises, mutate, probes, sandbox
from tools.steplib.book import PACKAGE, Book, Chapter
from tools.steplib.checkresult import Failure, Result, failure_from
from tools.steplib.child import Job
from tools.steplib.exercises import Exercise, make_starter
from tools.steplib.forks import Outcome
from tools.steplib.workplace import TESTS_LIMIT, Workplace

LIMIT = 120.0
_STUB = re.compile(r'raise NotImplementedError\("write [^"]*"\)')


@dataclass(frozen=True)
class _Run:
    """One run of tests on an edited build folder, and the verdict it should have.

    want: ``green``, ``stub`` (red with NotImplementedError only) or ``red``.
    """

    exercise: Exercise
    name: str
    edits: dict[str, str]
    tests: list[str]
    want: str
    limit: float = LIMIT


@dataclass
class Proofs:
    """The runs for some exercises of one chapter, made from its build folder."""

    book: Book
    chapter: Chapter
    place: Workplace
    full: bool
    chosen: list[Exercise]
    problems: list[Failure] = field(default_factory=list)
    runs: list[_Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A tag holds no solutions: nothing can be proven there.
        self.known = [e for e in self.chosen if e.solution()]
        for exercise in self.known:
            try:
                self.runs += self._plan(exercise)
            except ValueError as error:  # a stub or a mutant without its place
                self._fail(exercise, str(error))

    def _plan(self, exercise: Exercise) -> list[_Run]:
        solution, test = exercise.solution(), [exercise.test]
        starter = exercise.starter()
        shown = {
            exercise.test: (exercise.dir / exercises.TEST).read_text("utf-8")
        }
        runs = [
            _Run(exercise, "the starter", starter | shown, test, "stub"),
            _Run(exercise, "the solution", solution | shown, test, "green"),
        ]
        if not self.full:
            return runs
        for file, names in exercise.written().items():
            for name in names:
                emptied = make_starter(solution, {file: [name]})
                emptied[file] = _STUB.sub("return None", emptied[file])
                what = f"{name} without effect"
                runs.append(_Run(exercise, what, emptied | shown, test, "red"))
        for mutant in self._mutants(exercise, solution):
            edits = solution | {
                sandbox.place(self.chapter, mutant.path): mutant.text
            }
            what = f"the wrong solution {mutant.edit!r}"
            runs.append(_Run(exercise, what, edits | shown, test, "red"))
        own = self.chapter.tests
        what = "the chapter's tests with the solution"
        runs.append(_Run(exercise, what, solution, own, "green", TESTS_LIMIT))
        return runs

    def _mutants(
        self, exercise: Exercise, solution: dict[str, str]
    ) -> list[mutate.Mutant]:
        stage = f"stages/{self.chapter.name}/"
        texts = {
            path.removeprefix(f"{PACKAGE}/").replace(stage, "stage:"): text
            for path, text in solution.items()
        }
        return mutate.planned(exercise.mutants, texts)

    def jobs(self) -> list[Job]:
        """One job a run, each in its own copy of the build folder."""
        return [self._job(i, run) for i, run in enumerate(self.runs)]

    def _job(self, number: int, run: _Run) -> Job:
        build = self.place.build(self.chapter)
        folder, setup = sandbox.variant(build, f"exercise{number}", run.edits)
        first = run.want == "red"
        body = partial(probes.run_tests, folder, run.tests, {}, first)
        job = self.place.job(self.chapter, folder, "tests", body, run.limit)
        return replace(job, setup=setup)

    def judge(self, outcomes: list[Outcome], result: Result) -> None:
        """Put what the runs showed into the chapter's result."""
        proven = {run.exercise.id for run in self.runs}
        for run, outcome in zip(self.runs, outcomes, strict=True):
            if not self._holds(run, outcome):
                proven.discard(run.exercise.id)
        result.failures += self.problems
        if self.known:
            result.exercises = [len(proven), len(self.known)]

    def _holds(self, run: _Run, outcome: Outcome) -> bool:
        if outcome.value is None:
            if run.want == "red":
                return True
            why = "no end in time" if outcome.timed_out else "the run died"
            return self._fail(run.exercise, f"{run.name}: {why}")
        failures = outcome.value["failures"]
        if run.want == "green":
            wrong = failures
        elif run.want == "stub":
            wrong = [record for record in failures if not record["stub"]]
        else:
            wrong = []
        for record in wrong:
            failure = failure_from(self.book, self.chapter, record)
            failure.message = (
                f"{run.exercise.id}: {run.name}: {failure.message}"
            )
            self.problems.append(failure)
        if run.want != "green" and not failures:
            return self._fail(run.exercise, f"{run.name} is green")
        for leak in outcome.leaks:
            self._fail(run.exercise, f"{run.name}: leak: {leak}")
        return not wrong and not outcome.leaks

    def _fail(self, exercise: Exercise, text: str) -> bool:
        where = f"{exercise.place}/{exercises.MANIFEST}"
        self.problems.append(Failure(where, f"{exercise.id}: {text}"))
        return False
