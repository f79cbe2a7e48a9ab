"""`steps.py tag`: make, or prove, the two tags of every chapter."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tools.steplib.book import ROOT, Book
from tools.steplib.gitrepo import GitError, Repo
from tools.steplib.pages import is_tag_tree
from tools.steplib.tagtree import TagError, build, changes


def run(
    root: Path, check: bool, only: str | None = None
) -> tuple[int, list[str]]:
    """Make the tags of the checkout `root`; with `check` only compare.

    Returns:
        (number of tags looked at, a line for each that was or is wrong).
    """
    with contextlib.ExitStack() as stack:
        scratch = None
        if check:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        repo = Repo(root, scratch)
        wanted = build(repo)
        new = changes(repo, wanted)
        if only is not None:
            number = Book.load(root).chapter(only).id
            wanted = [tag for tag in wanted if tag.name[:4] == number]
            new = {name: to for name, to in new.items() if name[:4] == number}
        if new and not check:
            repo.set_tags(new)
    return len(wanted), [_line(name, to, check) for name, to in new.items()]


def _line(name: str, to: str | None, check: bool) -> str:
    if check:
        return f"{name}: {'stale or missing' if to else 'no such chapter any more'}"
    return f"{name}: {to[:12] if to else 'removed'}"


def tag(
    check: Annotated[
        bool, typer.Option("--check", help="Prove that the tags are current.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="N", help="Only this chapter's two tags."),
    ] = None,
) -> None:
    """Make chNN (where the reader starts) and chNN-done of every chapter from HEAD."""
    if is_tag_tree(ROOT):
        typer.echo(
            "tag: this is a tag's own tree; tags are made on the main branch"
        )
        return
    try:
        looked_at, lines = run(ROOT, check, only)
    except (GitError, TagError) as error:
        typer.echo(f"tag: {error}", err=True)
        raise typer.Exit(2) from None
    for line in lines:
        typer.echo(line, err=check)
    if check and lines:
        typer.echo("tag: run tools/steps.py tag", err=True)
        raise typer.Exit(1)
    typer.echo(f"tag: {looked_at} tags, as HEAD gives them")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(tag)
