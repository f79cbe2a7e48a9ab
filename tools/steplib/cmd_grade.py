"""The reader's loop ends: grade, compare."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Annotated

import typer

from tools.steplib import report
from tools.steplib.book import ROOT, ManifestError
from tools.steplib.gitrepo import GitError, Repo
from tools.steplib.progress import Progress
from tools.steplib.reader import STEPS, Which, shown
from tools.steplib.shelf import Item, Shelf
from tools.steplib.worktrees import place_of


def grade(
    which: Which = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Run all; the whole reports."),
    ] = False,
) -> None:
    """Test what you wrote, with the exercise's tests and its chapter's own."""
    from tools.steplib import grading

    shelf = Shelf(ROOT)
    item = shelf.find(which)
    root = place_of(shelf, item)
    typer.echo(f"{item.id}: {item.title('en')}, {shown(root)}")
    verdict = grading.grade(item, root, fresh=verbose)
    if verbose:
        for part in verdict.parts:
            typer.echo(part.report.rstrip())
    for line in verdict.lines():
        typer.echo(line)
    progress = Progress(shelf.main)
    progress.graded(item.id, verdict.green)
    if verdict.green:
        typer.secho(f"GREEN: {item.id} is done", fg="green", bold=True)
        typer.echo(f"next: {STEPS} compare {item.id}, {STEPS} status")
        return
    for text in verdict.unwritten():
        typer.echo(f"  still to write: {text}")
    typer.secho(f"RED: {item.id} is not done yet", fg="red", bold=True)
    stuck = f"stuck? {STEPS} hint {item.id}"
    if item.exercise is None:
        stuck = f"what to write is in docs/en/{item.chapter.name}.md"
    typer.echo(f"next: edit, then {STEPS} grade {item.id} ({stuck})")
    raise typer.Exit(1)


def compare(which: Which = None) -> None:
    """Show how the book's solution (for a chapter: chNN-done) differs from yours."""
    shelf = Shelf(ROOT)
    item = shelf.find(which)
    root = place_of(shelf, item)
    lines = [*_differences(root, _solution(shelf, item))]
    if not lines:
        typer.echo(f"{item.id}: your text is the book's, byte for byte")
        return
    typer.echo(f"{item.id}: from your text (-) to the book's (+)")
    report.show_diff(lines)


def _solution(shelf: Shelf, item: Item) -> dict[str, str]:
    """File -> the book's text of what the reader writes."""
    if item.exercise is not None:
        return shelf.solution(item.exercise)
    repo, tag = Repo(shelf.root), f"{item.chapter.id}-done"
    try:
        files = repo.files(f"refs/tags/{tag}")
        return {
            path: repo.read(files[path].blob).decode()
            for path in item.written()
        }
    except (GitError, KeyError):
        raise ManifestError(
            f"there is no tag {tag}: run `make setup`"
        ) from None


def _differences(root: Path, solution: dict[str, str]) -> Iterator[str]:
    for path, theirs in sorted(solution.items()):
        mine = root / path
        text = mine.read_text(encoding="utf-8") if mine.is_file() else ""
        for line in unified_diff(
            text.splitlines(keepends=True),
            theirs.splitlines(keepends=True),
            f"yours/{path}",
            f"book/{path}",
        ):
            yield line if line.endswith("\n") else f"{line}\n"


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(grade)
    app.command()(compare)
