"""The reader's loop, first half: exercises, start, hint, status."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from tools.steplib import report
from tools.steplib.book import ROOT, Book, ManifestError
from tools.steplib.progress import Progress
from tools.steplib.shelf import Item, Shelf, started

Which = Annotated[
    str | None,
    typer.Argument(
        metavar="[X]", help="ex07-1, 7, ch07; in a started worktree: its own."
    ),
]
Zh = Annotated[
    bool | None,
    typer.Option("--zh/--en", help="Language; default: the terminal's."),
]
STEPS = "python tools/steps.py"


def language(zh: bool | None) -> str:
    """``zh`` or ``en``: as asked for, else as the environment's locale says."""
    if zh is None:
        names = ("LC_ALL", "LC_MESSAGES", "LANG")
        found = next((v for n in names if (v := os.environ.get(n))), "")
        zh = found.lower().startswith("zh")
    return "zh" if zh else "en"


def shown(path: Path) -> str:
    """A path as one types it from where one is."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


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
    progress, open_ = Progress(shelf.main), _open(shelf)
    rows = []
    for exercise in shelf.exercises:
        state = _state(progress, open_, exercise.id)
        title = exercise.title[language(zh)]
        rows.append(
            (exercise.id, title, exercise.stars, exercise.minutes, state)
        )
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


def _open(shelf: Shelf) -> dict[str, Path]:
    """Worktrees that have been started, by what for."""
    from tools.steplib import worktrees

    folders = worktrees.worktrees(shelf.root)
    return {name: p for p in folders if (name := started(p)) is not None}


def _state(progress: Progress, open_: dict[str, Path], id: str) -> str:
    """What a list says of one chapter or exercise."""
    entry = progress.of(id)
    if entry.green:
        return f"done {entry.green}"
    if id in open_:
        return f"started, {entry.last}" if entry.last else "started"
    return ""


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
    from tools.steplib.stubs import extract_source

    shelf = Shelf(ROOT)
    item = shelf.find(which)
    dest = worktrees.start(shelf, item, folder)
    lang = language(zh)
    time_ = f" (about {item.exercise.minutes} minutes)" if item.exercise else ""
    typer.echo(f"{item.id}: {item.title(lang)}{time_}")
    typer.echo(f"worktree  {shown(dest)}, branch {worktrees.branch(item)}")
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
    for path in [*item.tests(), *item.chapter.tests][:1]:
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


def status(zh: Zh = None) -> None:
    """Say what is done, what is open, and the one thing to do next."""
    shelf = Shelf(ROOT)
    progress, open_ = Progress(shelf.main), _open(shelf)
    items = shelf.items()
    for kind, some in (
        ("chapters written", [i for i in items if i.exercise is None]),
        ("exercises done", [i for i in items if i.exercise is not None]),
    ):
        done = [i.id for i in some if progress.of(i.id).green]
        typer.echo(
            f"{kind:17}{len(done):3} of {len(some)}  {' '.join(done)}".rstrip()
        )
    unfinished = [
        i for i in items if i.id in open_ and not progress.of(i.id).green
    ]
    for item in unfinished:
        state = _state(progress, open_, item.id)
        typer.echo(
            f"open             {item.id} in {shown(open_[item.id])}, {state}"
        )
    typer.echo(
        f"next             {_next(items, unfinished, progress, open_, zh)}"
    )


def _next(
    items: list[Item],
    unfinished: list[Item],
    progress: Progress,
    open_: dict[str, Path],
    zh: bool | None,
) -> str:
    if unfinished:
        item = unfinished[-1]
        here = open_[item.id] == Path(ROOT)
        go = "" if here else f"cd {shown(open_[item.id])} && "
        return f"{go}{STEPS} grade ({item.title(language(zh))})"
    done = [at for at, item in enumerate(items) if progress.of(item.id).green]
    later = items[max(done) + 1 :] if done else items
    left = [i for i in [*later, *items] if not progress.of(i.id).green]
    if not left:
        return "nothing is left: every chapter and exercise is done"
    return f"{STEPS} start {left[0].id} ({left[0].title(language(zh))})"


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (exercises, start, hint, status):
        app.command()(command)
