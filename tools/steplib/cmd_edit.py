"""Commands that write: build, freeze, backport, revert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tools.steplib.book import PACKAGE, ROOT, Book, ManifestError

Which = Annotated[
    str, typer.Argument(help="A chapter: 9, ch09 or its folder name.")
]
File = Annotated[str, typer.Argument(help="A package file: kvcache/base.py.")]


def build(
    n: Which,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to.")],
) -> None:
    """Write the package as of chapter N to DIR/minisgl."""
    book = Book.load()
    chapter = book.chapter(n)
    target = folder / PACKAGE
    if target.exists():
        raise ManifestError(
            f"{target} exists: remove it or choose another folder"
        )
    files = book.build(chapter.number, folder)
    if not files:
        typer.echo(
            f"{chapter.name} has no package: its engine is in {chapter.dir}"
        )
        return
    typer.echo(f"{target}: {len(files)} files as of {chapter.name}")


def freeze(
    file: File,
    chapter: Annotated[
        str, typer.Option("--for", help="The chapter that edits it.")
    ],
) -> None:
    """Keep today's text of FILE for its owner before chapter N edits it."""
    from tools.steplib import versions

    book = Book.load()
    path, reader = book.lookup(file), book.chapter(chapter)
    copy, manifest = versions.freeze(book, path, reader.number)
    typer.echo(f"wrote {copy.relative_to(book.root)}")
    typer.echo(f"added {path} to change in {manifest.relative_to(book.root)}")
    new = Book.load().source(path, reader.number)
    if new is not None:
        typer.echo(f"now edit {new.relative_to(book.root)}")


def backport(
    n: Which,
    file: File,
    base: Annotated[
        str, typer.Option(help="The revision that has not the fix yet.")
    ] = "HEAD",
    force_markers: Annotated[
        bool,
        typer.Option("--force-markers", help="Write conflicts as markers."),
    ] = False,
) -> None:
    """Merge a fix made in a newer version of FILE into the one chapter N sees."""
    from tools.steplib import versions

    book = Book.load()
    path = book.lookup(file)
    merge = versions.backport(book, book.chapter(n).number, path, base)
    target = merge.target.relative_to(book.root)
    if merge.conflicts and not force_markers:
        typer.echo("\n".join(merge.hunks))
        typer.echo(
            f"{target}: {merge.conflicts} conflicts, nothing written "
            "(--force-markers writes them into the file)",
            err=True,
        )
        raise typer.Exit(1)
    if merge.text == merge.target.read_text(encoding="utf-8"):
        typer.echo(f"{target}: has the fix already")
        return
    merge.target.write_text(merge.text, encoding="utf-8")
    note = f", {merge.conflicts} conflicts marked" if merge.conflicts else ""
    source = merge.source.relative_to(book.root)
    typer.echo(f"{target}: merged what changed in {source}{note}")
    if merge.conflicts:
        raise typer.Exit(1)


def revert(
    k: Annotated[int, typer.Argument(metavar="K", help="Number of the fault.")],
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="Default: .cache/revert-K."),
    ] = None,
    log: Annotated[
        bool, typer.Option("--log", help="Print all that pytest prints.")
    ] = False,
) -> None:
    """Bring fault K of upstream back in a copy and watch its test go red."""
    from tools.steplib import reverts

    book = Book.load()
    fault = reverts.find(book.root, k)
    typer.echo(f"fault {k}: {fault.sentence}")
    dest = reverts.prepare(book, fault, folder)
    green, output = reverts.run_test(book, fault, dest)
    if not green:
        raise ManifestError(f"{fault.test} is red without the fault:\n{output}")
    typer.echo(f"without it: {fault.test} is green")
    reverts.apply(fault, dest)
    green, output = reverts.run_test(book, fault, dest)
    typer.echo(output.rstrip() if log else reverts.reason(output))
    typer.echo(f"with it: {fault.test} is {'STILL GREEN' if green else 'red'}")
    near = dest.relative_to(ROOT) if dest.is_relative_to(ROOT) else dest
    typer.echo(f"the copy with the fault: {near}")
    if green:
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    """Add the writing commands to `app`."""
    for command in (build, freeze, backport, revert):
        app.command()(command)
