"""What runs inside a child of the checker: a chapter's main, its tests."""

from __future__ import annotations

import os
import runpy
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def run_main(main: Path, args: list[str]) -> dict[str, Any]:
    """Run a script as Python would.

    Returns ``seconds`` and ``failure``: None, or a record as `describe` makes it.
    """
    sys.argv = [str(main), *args]
    sys.path.insert(1, str(main.parent))
    started = time.perf_counter()
    failure = None
    try:
        runpy.run_path(str(main), run_name="__main__")
    except SystemExit as stop:
        if stop.code not in (None, 0):
            failure = describe("main.py", stop)
            failure["message"] = f"exit code {stop.code}"
    except BaseException as error:
        traceback.print_exc()
        failure = describe("main.py", error)
    return {"seconds": time.perf_counter() - started, "failure": failure}


def run_tests(
    build: Path,
    tests: list[str],
    order: dict[str, float],
    first: bool,
    slow: bool = False,
) -> dict[str, Any]:
    """Run test files with pytest in the build folder.

    Args:
        order: seconds by test id from an earlier run; quick ones go first.
        first: stop at the first failure.
        slow: run also those that are marked so.

    Returns ``passed``, ``parity`` (passed ones so marked), ``skips`` (reasons),
    ``seconds`` by test id, and ``failures`` as `describe` makes them.
    """
    recorder = Recorder(order)
    sys.argv = ["pytest"]
    options = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--tb=short"]
    options += ["-c", str(build / "pyproject.toml"), f"--rootdir={build}"]
    options += ["--import-mode=importlib", f"--confcutdir={build}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # preloaded
    options += [] if slow else ["-m", "not slow"]
    code = pytest.main(
        [*options, *(["-x"] if first else []), *tests], [recorder]
    )
    if code and not recorder.failures:
        text = f"pytest ended with exit code {int(code)} ({pytest.ExitCode(code).name})"
        recorder.failures.append(_record("pytest", "Exit", text, False, []))
    return recorder.result()


def run_starter(
    build: Path,
    main: Path,
    tests: list[str],
    order: dict[str, float],
    first: bool,
) -> dict[str, Any]:
    """Run tests and then main; with `first` stop at the first failure of all.

    Returns ``failures`` as `describe` makes them.
    """
    failures = run_tests(build, tests, order, first)["failures"]
    if not (first and failures) and (found := run_main(main, [])["failure"]):
        failures.append(found)
    return {"failures": failures}


class Recorder:
    """Pytest plugin that orders the tests and keeps what came of each."""

    def __init__(self, order: dict[str, float]) -> None:
        self.order = order
        self.parity: set[str] = set()
        self.passed: list[str] = []
        self.skips: list[str] = []
        self.seconds: dict[str, float] = {}
        self.failures: list[dict[str, Any]] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if item.get_closest_marker("parity"):
                self.parity.add(item.nodeid)
        if self.order:  # stable: tests never timed come last
            items.sort(key=lambda item: self.order.get(item.nodeid, 1e9))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self.seconds[test] = self.seconds.get(test, 0.0) + report.duration
        if report.skipped:
            self.skips.append(f"{test}: {_reason(report)}")
        elif report.when == "call" and report.passed:
            self.passed.append(test)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self.skips.append(f"{report.nodeid}: {_reason(report)}")

    def pytest_exception_interact(
        self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[Any]
    ) -> None:
        assert call.excinfo is not None
        self.failures.append(describe(node.nodeid, call.excinfo.value))

    def result(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "parity": sum(test in self.parity for test in self.passed),
            "skips": self.skips,
            "seconds": self.seconds,
            "failures": self.failures,
        }


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"fails as expected: {report.wasxfail}"
    text = report.longrepr
    reason = text[2] if isinstance(text, tuple) else str(text)
    return reason.removeprefix("Skipped: ")


def describe(where: str, error: BaseException) -> dict[str, Any]:
    """One failure: ``where``, ``type``, ``message``, ``stub``, ``frames``.

    ``frames`` are the (path, line) inside the current folder, innermost last, of
    the first cause; ``stub`` says that the failure comes from an unwritten function.
    """
    causes = list(_causes(error))
    frames = [frame for cause in reversed(causes) for frame in _frames(cause)]
    if isinstance(error, pytest.Collector.CollectError) and len(causes) > 1:
        error = causes[-1]  # pytest's own words say less
    lines = [line for line in str(error).splitlines() if line.strip()]
    message = lines[0].strip() if lines else ""
    stub = _is_stub(causes[-1]) or "NotImplementedError" in str(error)
    return _record(where, type(error).__name__, message, stub, frames)


def _record(
    where: str,
    kind: str,
    message: str,
    stub: bool,
    frames: list[tuple[str, int]],
) -> dict[str, Any]:
    record = {"where": where, "type": kind, "message": message}
    return {**record, "stub": stub, "frames": frames}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and what led to it, the first cause last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        hidden = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or hidden


def _is_stub(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_stub(inner) for inner in error.exceptions)
    return isinstance(error, NotImplementedError)


def _frames(error: BaseException) -> list[tuple[str, int]]:
    folder = os.getcwd() + os.sep
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno or 0) for frame in frames]
    if isinstance(error, SyntaxError):  # the file was not run: no frame of it
        places.append((error.filename or "", error.lineno or 0))
    return [
        (path.removeprefix(folder), line)
        for path, line in places
        if path.startswith(folder)
    ]
