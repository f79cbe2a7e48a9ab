"""Every verification of this repository in one command.

One table, a log file per row in .cache/logs, exit status 1 if any row failed. The
last line is the test runner's summary.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

from tools.steplib import venv  # noqa: E402

venv.ensure(ROOT)

import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.live import Live  # noqa: E402
from rich.markup import escape  # noqa: E402
from rich.table import Table  # noqa: E402

from tools.steplib import testrun  # noqa: E402
from tools.steplib.rows import Row, rows  # noqa: E402

LOGS = ROOT / ".cache" / "logs"
STYLES = {
    "ok": "green",
    "FAILED": "bold red",
    "skip": "yellow",
    "running": "cyan",
}
TAIL = 60  # lines of a failed row's log that are shown


@dataclass
class Result:
    """One finished (or running) row of the table."""

    row: Row
    state: str
    seconds: float = 0.0
    note: str = ""

    @property
    def log(self) -> Path:
        """Of all test rows the same: they run together."""
        name = "pytest" if self.row.tests else self.row.name
        return LOGS / f"{name}.log"


def run_row(row: Row) -> Result:
    """Run a row of commands; their output goes to its log file only."""
    result = Result(row, "skip", note=row.skip)
    if row.skip:
        return result
    start = time.perf_counter()
    green = _run_commands(row, result.log)
    lines = _lines(result.log)
    result.note = lines[-1][:90] if green and lines else ""
    result.state = "ok" if green else "FAILED"
    result.seconds = time.perf_counter() - start
    return result


def run_tests(chosen: list[Row], full: bool) -> tuple[list[Result], str]:
    """Run the rows of test files together, so that all processes have work.

    Returns them with the test runner's summary line. What no file can be told
    of, such as a process that broke, is in the last row.
    """
    start, files = time.perf_counter(), [f for row in chosen for f in row.tests]
    results = [Result(row, "skip", note=row.skip) for row in chosen]
    if not files:
        return results, ""
    with (LOGS / "pytest.log").open("w", encoding="utf-8") as log:
        cache = ROOT / ".cache" / "pytest"
        outcome = testrun.run(ROOT, log, cache, full, files)
    line = outcome.line(time.perf_counter() - start)
    ran = [one for one in results if not one.row.skip]
    for one in ran:
        last = one is ran[-1]
        part = outcome if last else outcome.take(one.row.tests)
        one.seconds = sum(part.seconds.values())
        one.note = part.line(one.seconds)
        one.state = "ok" if part.green else "FAILED"
        if set(part.counts) == {"skipped"}:
            one.state = "skip"  # nothing was proven
    return results, line


def _run_commands(row: Row, log: Path) -> bool:
    with log.open("w", encoding="utf-8") as stream:
        for command in row.commands:
            shown = ["python", *command[1:]]
            print(f"$ {shlex.join(shown)}", file=stream, flush=True)
            done = subprocess.run(
                command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT
            )
            if done.returncode:
                print(
                    f"status {done.returncode}: {shlex.join(shown)}",
                    file=stream,
                )
                return False
    return True


def _lines(log: Path) -> list[str]:
    text = log.read_text(encoding="utf-8", errors="replace")
    return [
        n for n in text.splitlines() if n.strip() and not n.startswith("$ ")
    ]


def table(results: list[Result]) -> Table:
    """The table as a terminal shows it."""
    shown = Table(box=None, pad_edge=False)
    for name in ("check", "result", "seconds", ""):
        shown.add_column(name, justify="right" if name == "seconds" else "left")
    for one in results:
        style = STYLES[one.state]
        seconds = (
            "" if one.state in ("skip", "running") else f"{one.seconds:.1f}"
        )
        state = f"[{style}]{one.state}[/]"
        shown.add_row(one.row.name, state, seconds, escape(one.note))
    return shown


def show_failure(one: Result) -> None:
    """The end of a failed row's log, and where the rest is."""
    print(
        f"\n--- {one.row.name} FAILED, the end of {one.log.relative_to(ROOT)}:"
    )
    text = one.log.read_text(encoding="utf-8", errors="replace")
    print("\n".join(text.splitlines()[-TAIL:]))
    print(f"--- again: python tools/check.py --only {one.row.name}")


def choose(every: list[Row], only: list[str], fast: bool) -> list[Row]:
    """The rows asked for.

    Raises:
        typer.BadParameter: a name that is no row.
    """
    names = [row.name for row in every]
    for name in only:
        if name not in names:
            raise typer.BadParameter(
                f"no row {name!r}; known: {', '.join(names)}"
            )
    if only:
        chosen = [row for row in every if row.name in only]
    else:
        chosen = [row for row in every if not (fast and row.slow)]
    return [_rest(row, chosen) for row in chosen]


def _rest(row: Row, chosen: list[Row]) -> Row:
    """A row of all tests leaves out what another row runs."""
    if row.commands or row.tests or row.skip:
        return row
    taken = {file for other in chosen for file in other.tests}
    every = testrun.weigh(ROOT, ROOT / ".cache" / "pytest" / "durations.json")
    return replace(row, tests=tuple(sorted(set(every) - taken)))


class _Shown:
    """Results as they come: a table on a terminal, else a line for each."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        console = Console()
        self._live = Live(console=console, auto_refresh=False)
        self._is_live = console.is_terminal

    def __enter__(self) -> _Shown:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_live:
            self._live.stop()

    def running(self, *rows: Row) -> None:
        """These have begun."""
        if self._is_live:
            begun = [Result(row, "running") for row in rows]
            self._live.update(table([*self.results, *begun]), refresh=True)

    def add(self, *results: Result) -> None:
        """These are finished."""
        self.results += results
        if self._is_live:
            self._live.update(table(self.results), refresh=True)
            return
        for one in results:
            line = (
                f"{one.row.name:10}{one.state:8}{one.seconds:7.1f}s  {one.note}"
            )
            print(line.rstrip(), flush=True)


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="Run this row only.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Mutants, slow tests.")
    ] = False,
    fast: Annotated[
        bool, typer.Option("--fast", help="Leave out slow rows.")
    ] = False,
) -> None:
    """Check style, types, stages, tags, the book and the tests."""
    os.chdir(ROOT)
    os.environ.setdefault(
        "NO_MKDOCS_2_WARNING", "1"
    )  # it tells of the theme's end
    LOGS.mkdir(parents=True, exist_ok=True)
    chosen = choose(rows(ROOT, full), only or [], fast)
    commands = [row for row in chosen if row.commands]
    tests = [row for row in chosen if not row.commands]
    summary = ""
    with _Shown() as shown:
        for row in commands:
            shown.running(row)
            shown.add(run_row(row))
        if tests:
            shown.running(*tests)
            results, summary = run_tests(tests, full)
            shown.add(*results)
    results = shown.results
    failed = [one for one in results if one.state == "FAILED"]
    for one in failed:
        show_failure(one)
    if failed:
        print(f"failed: {', '.join(one.row.name for one in failed)}")
    if summary:
        print(summary)
    raise typer.Exit(bool(failed))


if __name__ == "__main__":
    typer.run(main)
