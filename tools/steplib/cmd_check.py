"""Commands that run chapters: check, run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tools.steplib import report
from tools.steplib.book import Book, Chapter

if TYPE_CHECKING:
    from tools.steplib.checkresult import Result


def _chosen(
    book: Book, only: str | None, first: str | None, last: str | None
) -> list[Chapter]:
    if only is not None:
        if first is not None or last is not None:
            raise typer.BadParameter(
                "--only stands alone: drop --from and --upto"
            )
        return [book.chapter(only)]
    low = 0 if first is None else book.chapter(first).number
    high = book.last if last is None else book.chapter(last).number
    if low > high:
        raise typer.BadParameter(f"no chapter from {low} up to {high}")
    return book.chapters[low : high + 1]


def check(
    only: Annotated[str | None, typer.Option(help="Only this chapter.")] = None,
    first: Annotated[
        str | None, typer.Option("--from", help="From this one.")
    ] = None,
    upto: Annotated[str | None, typer.Option(help="Up to this one.")] = None,
    jobs: Annotated[
        int, typer.Option("-j", min=0, help="Children at a time; 0: one a CPU.")
    ] = 0,
    model: Annotated[
        str, typer.Option(help="Run mains and tests with this checkpoint.")
    ] = "",
    changed: Annotated[
        bool,
        typer.Option("--changed", help="Only chapters not known to be green."),
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="Also starters red and mutants killed."),
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Run even what is known to be green."),
    ] = False,
    bless: Annotated[
        bool,
        typer.Option("--bless", help="Write what mains print to output.txt."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.")
    ] = False,
) -> None:
    """Check chapters in fresh build folders: lint, main, its output, tests."""
    if bless and model:
        raise typer.BadParameter(
            "--bless records the default model: drop --model"
        )
    from tools.steplib.checker import Checker, Options
    from tools.steplib.checkresult import totals

    started = time.monotonic()
    book = Book.load()
    chapters = _chosen(book, only, first, upto)
    checker = Checker(book, Options(model, full, jobs, fresh, bless))
    results = []
    for result in checker.run(chapters, changed):
        results.append(result)
        if not as_json:
            _show(result)
    seconds = time.monotonic() - started
    if as_json:
        report.show_json({
            "ok": all(r.ok for r in results),
            "seconds": round(seconds, 1),
            "chapters": [r.as_dict() for r in results],
        })  # fmt: skip
    else:
        if unchanged := len(chapters) - len(results):
            typer.echo(f"{unchanged} chapters unchanged since they were green")
        _repeat_failures(results)
        typer.echo(totals(results, seconds))
    if not all(r.ok for r in results):
        raise typer.Exit(1)


def _show(result: Result) -> None:
    details = [f"    {line}" for line in result.details()]
    if not sys.stdout.isatty():
        print("\n".join([result.line(), *details]), flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    style = (
        "green"
        if result.verdict() == "ok"
        else "yellow"
        if result.ok
        else "red"
    )
    console = Console()
    console.print(Text(result.line(), style=style), soft_wrap=True)
    for line in details:
        console.print(Text(line), soft_wrap=True)


def _repeat_failures(results: list[Result]) -> None:
    """Show at the end what failed far above it, where a log is cut last."""
    for result in results[:-1]:
        if not result.ok:
            typer.echo(f"failed above: {result.chapter} {result.slug}")
            for failure in result.failures:
                typer.echo("\n".join(f"    {n}" for n in failure.lines()))


def run(
    n: Annotated[
        str, typer.Argument(help="A chapter: 9, ch09 or its folder name.")
    ],
    args: Annotated[
        list[str] | None, typer.Argument(help="Options for its main.py.")
    ] = None,
) -> None:
    """Run a chapter's main.py on the package as of that chapter."""
    from tools.steplib import guard, sandbox

    book = Book.load()
    chapter = book.chapter(n)
    with tempfile.TemporaryDirectory(prefix="steps-") as folder:
        work = Path(folder).resolve()
        build = sandbox.make_build(book, chapter, work / chapter.id)
        hooks = sandbox.make_hooks(work)
        env = sandbox.environment(book, chapter, build, hooks)
        script = build / "stages" / chapter.name / "main.py"
        command = [sys.executable, str(script), *(args or [])]
        done = subprocess.run(command, cwd=build, env=env)
        leaks = Path(env[guard.LEAKS])
        if leaks.is_file():
            typer.echo(f"leak: {leaks.read_text().splitlines()[0]}", err=True)
            raise typer.Exit(1)
    raise typer.Exit(done.returncode)


def register(app: typer.Typer) -> None:
    """Add the running commands to `app`."""
    app.command()(check)
    raw = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command(context_settings=raw)(run)
