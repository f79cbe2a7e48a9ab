"""`steps.py docs`: write, or prove, the generated blocks of the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.steplib.book import ROOT, Book, ManifestError
from tools.steplib.docblocks import refresh
from tools.steplib.pages import BlockError, is_tag_tree, read_pages


def update(root: Path, check: bool) -> tuple[list[str], list[str]]:
    """Refresh every page under `root`; with `check` write nothing.

    Returns:
        (``page:line`` of each block that is or was stale, errors). A page with an
        error is left as it is.
    """
    book = Book.load(root)
    stale: list[str] = []
    errors: list[str] = []
    for page in read_pages(root):
        try:
            text, lines = refresh(book, page)
        except BlockError as error:
            errors.append(str(error))
            continue
        stale += [f"{page.name}:{line}" for line in lines]
        if lines and not check:
            page.path.write_bytes(text.encode())
    return stale, errors


def docs(
    check: Annotated[
        bool, typer.Option("--check", help="Prove that the blocks are current.")
    ] = False,
) -> None:
    """Write the generated blocks of all pages: code, outputs, tables, pictures."""
    if is_tag_tree(
        ROOT
    ):  # stubs would get into the text, later chapters drop out
        typer.echo("docs: a tag's pages stay as the main branch has them")
        return
    try:
        stale, errors = update(ROOT, check)
    except ManifestError as error:
        stale, errors = [], [str(error)]
    for line in errors:
        typer.echo(line, err=True)
    for where in stale:
        note = "stale block, run tools/steps.py docs" if check else "written"
        typer.echo(f"{where}: {note}", err=check)
    if errors or (check and stale):
        raise typer.Exit(1)
    typer.echo("docs: every generated block is current")


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(docs)
