"""The reader's loop goes on: what is done, what is open, what comes next."""

from __future__ import annotations

from pathlib import Path

import typer

from tools.steplib.book import ROOT
from tools.steplib.progress import Progress
from tools.steplib.reader import (
    STEPS,
    Zh,
    language,
    open_worktrees,
    shown,
    state,
)
from tools.steplib.shelf import Item, Shelf


def status(zh: Zh = None) -> None:
    """Say what is done, what is open, and the one thing to do next."""
    shelf = Shelf(ROOT)
    progress, open_ = Progress(shelf.main), open_worktrees(shelf)
    items = shelf.items()
    for name, is_exercise in (("chapters", False), ("exercises", True)):
        some = [i.id for i in items if bool(i.exercise) is is_exercise]
        done = [id for id in some if progress.of(id).green]
        line = f"{name:10}{len(done):3} of {len(some)} done  {' '.join(done)}"
        typer.echo(line.rstrip())
    typer.echo(
        "           (done: `grade` has found it green; `check` is not counted)"
    )
    begun = [i for i in items if i.id in open_ and not progress.of(i.id).green]
    for item in begun:
        where, how = shown(open_[item.id]), state(progress, open_, item.id)
        typer.echo(f"open       {item.id}, {where}, {how}")
    typer.echo(
        f"next       {_next(items, begun, progress, open_, language(zh))}"
    )


def _next(
    items: list[Item],
    begun: list[Item],
    progress: Progress,
    open_: dict[str, Path],
    language: str,
) -> str:
    """The command to give next: go on here, else elsewhere, else start anew."""
    places = [(item, shown(open_[item.id])) for item in begun]
    for item, where in sorted(places, key=lambda place: place[1] != "here"):
        go = "" if where == "here" else f"cd {where} && "
        return f"{go}{STEPS} grade ({item.title(language)})"
    done = [at for at, item in enumerate(items) if progress.of(item.id).green]
    later = items[max(done) + 1 :] if done else items
    for item in (*later, *items):
        if not progress.of(item.id).green:
            return f"{STEPS} start {item.id} ({item.title(language)})"
    return "nothing is left: every chapter and exercise is done"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(status)
