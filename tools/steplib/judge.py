"""What the outcomes of a chapter's main and tests mean for its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tools.steplib import masks
from tools.steplib.book import Book, Chapter
from tools.steplib.checkresult import Failure, Result, failure_from
from tools.steplib.forks import Outcome


@dataclass
class Judge:
    """Writes what it finds into `result`."""

    book: Book
    chapter: Chapter
    result: Result

    def main(self, outcome: Outcome, limit: float, bless: bool) -> None:
        """Judge the run of main.py; its output counts for the default model only."""
        value = self._value(f"{self._stage}/main.py", outcome, limit)
        if value is None:
            return
        self.result.main_seconds = value["seconds"]
        if record := value["failure"]:
            self._add(record)
        elif bless:
            self.chapter.output.write_text(outcome.stdout, encoding="utf-8")
        elif not self.result.model:
            self._output(outcome.stdout)

    def tests(self, outcome: Outcome, limit: float) -> None:
        """Judge the tests' run."""
        where = " ".join(self.chapter.tests) or f"{self._stage}/stage.toml"
        value = self._value(where, outcome, limit)
        if value is None:
            return
        self.result.tests = len(value["passed"])
        self.result.parity = value["parity"]
        self.result.skips = value["skips"]
        for record in value["failures"]:
            self._add(record)
        if not (value["failures"] or value["parity"] or value["skips"]):
            self._fail(where, "no test marked parity ran")

    @property
    def _stage(self) -> str:
        return f"stages/{self.chapter.name}"

    def _fail(self, where: str, message: str) -> None:
        self.result.failures.append(Failure(where, message))

    def _add(self, record: dict[str, Any]) -> None:
        failure = failure_from(self.book, self.chapter, record)
        self.result.failures.append(failure)

    def _output(self, printed: str) -> None:
        where = f"{self._stage}/output.txt"
        if not self.chapter.output.is_file():
            text = "missing; `check --bless` writes what main.py printed"
            self._fail(where, text)
            return
        expected = self.chapter.output.read_text(encoding="utf-8")
        if found := masks.first_difference(expected, printed):
            line, want, got = found
            text = f"expected {want}, main.py printed {got}"
            self._fail(f"{where}:{line}", text)

    def _value(
        self, where: str, outcome: Outcome, limit: float
    ) -> dict[str, Any] | None:
        for leak in outcome.leaks:
            self._fail(where, f"leak: outside the build folder: {leak}")
        if outcome.value is None:
            why = f"no end after {limit:.0f} s" if outcome.timed_out else "died"
            tail = outcome.stderr.strip().splitlines()[-1:] or [""]
            self._fail(where, f"{why}: {tail[0]}".rstrip(": "))
        return outcome.value
