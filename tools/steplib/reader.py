"""What the commands of the reader's loop share: arguments, paths, states."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tools.steplib.progress import Progress
from tools.steplib.shelf import Shelf, started

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
    here = Path.cwd().resolve()
    if path.resolve() == here:
        return "here"
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def open_worktrees(shelf: Shelf) -> dict[str, Path]:
    """Worktrees that have been started, by what for."""
    from tools.steplib import worktrees

    folders = worktrees.worktrees(shelf.root)
    return {name: p for p in folders if (name := started(p)) is not None}


def state(progress: Progress, open_: dict[str, Path], id: str) -> str:
    """What a list says of one chapter or exercise."""
    entry = progress.of(id)
    if entry.green:
        return f"done {entry.green}"
    if id in open_:
        return f"started, {entry.last}" if entry.last else "started"
    return ""
