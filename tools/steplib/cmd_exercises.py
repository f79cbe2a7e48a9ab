"""The reader's loop begins: exercises, start, hint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from tools.steplib import report
from tools.steplib.book import ROOT, Book, ManifestError
from tools.steplib.progress import Progress
from tools.steplib.reader import (
    STEPS,
    Which,
    Zh,
    language,
    open_worktrees,
    shown,
    state,
)
from tools.steplib.shelf import Item, Shelf


def exercises(
    zh: Zh = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Prove starters red and solutions green."),
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="With --check: all that check --full proves."
        ),
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="With --check: only this exercise.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.")
    ] = False,
) -> None:
    """List the exercises: how hard, how long, and how far you are."""
    if check:
        _prove(full, only)
        return
    shelf = Shelf(ROOT)
    progress, open_ = Progress(shelf.main), open_worktrees(shelf)
    rows = []
    for exercise in shelf.exercises:
        title, how = exercise.title[language(zh)], exercise.stars
        far = state(progress, open_, exercise.id)
        rows.append((exercise.id, title, how, exercise.minutes, far))
    if as_json:
        keys = ("id", "title", "difficulty", "minutes", "state")
        report.show_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    report.show_table(["id", "title", "", "minutes#", "state"], rows)


def _prove(full: bool, only: str | None) -> None:
    from tools.steplib import exercises
    from tools.steplib.checker import Checker, Options

    book = Book.load(ROOT)
    chosen = exercises.load(book)
    if only is not None:
        chosen = [exercises.find(chosen, only)]
    begun, proven, failed = time.monotonic(), 0, 0
    for result in Checker(book, Options(full=full)).prove(chosen):
        proven += result.exercises[0] if result.exercises else 0
        failed += len(result.failures)
        for failure in result.failures:
            typer.echo("\n".join(failure.lines()))
    seconds = time.monotonic() - begun
    if failed:
        typer.echo(f"exercises: {failed} findings", err=True)
        raise typer.Exit(1)
    typer.echo(
        f"exercises: {proven} starters red, {proven} solutions green "
        f"in {seconds:.0f} s"
    )


def start(
    which: Annotated[
        str, typer.Argument(metavar="X", help="A chapter or an exercise.")
    ],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Default: practice/X."),
    ] = None,
    zh: Zh = None,
) -> None:
    """Make a new worktree in which you write a chapter or an exercise."""
    from tools.steplib import worktrees

    shelf = Shelf(ROOT)
    item = shelf.find(which)
    dest = worktrees.start(shelf, item, folder)
    _tell(item, dest, worktrees.branch(item), language(zh))
    if item.exercise is None and worktrees.is_unsaved(shelf, item):
        typer.echo(
            "note      what you wrote in this checkout, uncommitted, stays here: "
            f"the worktree begins anew, and it is what {item.id} is graded by now"
        )


def _tell(item: Item, dest: Path, branch: str, lang: str) -> None:
    """Say where a worktree is, what to read and write, and what to do then."""
    from tools.steplib.stubs import extract_source

    time_ = f" (about {item.exercise.minutes} minutes)" if item.exercise else ""
    typer.echo(f"{item.id}: {item.title(lang)}{time_}")
    typer.echo(f"worktree  {shown(dest)}, branch {branch}")
    page = dest / "docs" / lang / f"{item.chapter.name}.md"
    if not page.is_file():
        page = dest / "docs/en" / page.name
    if item.exercise is not None:
        page = dest / item.exercise.place / item.exercise.statement(lang).name
    typer.echo(f"read      {shown(page)}")
    for path, names in item.written().items():
        text = (dest / path).read_text(encoding="utf-8")
        for name in names:
            line = extract_source(text, name)[0]
            typer.echo(f"write     {name} in {path}:{line}")
    for path in item.tests() or item.chapter.tests:
        typer.echo(f"test      {path}")
    typer.echo(f"then      cd {shown(dest)} && {STEPS} grade")


def hint(which: Which = None, zh: Zh = None) -> None:
    """Show the next hint of an exercise; the first ones give little away."""
    shelf = Shelf(ROOT)
    item = shelf.find(which)
    if item.exercise is None:
        raise ManifestError(
            f"{item.id} has no hints: the page explains what to write, and "
            f"`steps.py compare {item.id}` shows how the book wrote it"
        )
    progress = Progress(shelf.main)
    hints = item.exercise.hints(language(zh))
    shown_before = progress.of(item.id).hints
    number = min(shown_before + 1, len(hints))
    typer.echo(f"{item.id}, hint {number} of {len(hints)}: {hints[number - 1]}")
    if number < len(hints):
        typer.echo(f"\nmore: {STEPS} hint {item.id}")
    else:
        typer.echo(
            f"\nthat was the last; {STEPS} compare {item.id} shows a solution"
        )
    progress.hint(item.id, number)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (exercises, start, hint):
        app.command()(command)
