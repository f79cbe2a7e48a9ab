"""Commands that only read: list, tree, diff, owns."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tools.steplib import report, show
from tools.steplib.book import Book

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Which = Annotated[
    str, typer.Argument(help="A chapter: 9, ch09 or its folder name.")
]


def list_chapters(
    churn: Annotated[
        bool,
        typer.Option("--churn", help="Versions of each file and the budget."),
    ] = False,
    zh: Annotated[bool, typer.Option("--zh", help="Chinese titles.")] = False,
    as_json: Json = False,
) -> None:
    """List the chapters: files, engine lines, what each adds and swaps."""
    book = Book.load()
    if churn:
        _list_churn(book, as_json)
        return
    rows = show.overview(book, "zh" if zh else "en")
    if as_json:
        report.show_json([asdict(row) for row in rows])
        return
    report.show_table(
        [
            "ch",
            "title",
            "part#",
            "files#",
            "lines#",
            "+#",
            "-#",
            "swaps",
            "last check",
        ],
        [
            (
                r.chapter,
                r.title,
                r.part,
                r.files,
                r.lines,
                f"+{r.added}",
                f"-{r.removed}",
                r.swaps,
                r.last_check,
            )
            for r in rows
        ],
    )


def _list_churn(book: Book, as_json: bool) -> None:
    rows = show.churn(book)
    if as_json:
        report.show_json([asdict(row) for row in rows])
        return
    report.show_table(
        ["file", "versions#", "lines#", "superseded#", "held by"],
        [
            (
                r.path,
                f"{r.versions}/{show.MAX_VERSIONS}",
                r.lines,
                r.superseded,
                " ".join(c.id for c in book.owners(r.path)),
            )
            for r in rows
        ],
    )
    typer.echo(show.churn_total(rows))


def tree(n: Which, as_json: Json = False) -> None:
    """Show the package at chapter N; new, changed and early files are marked."""
    book = Book.load()
    entries = show.package_at(book, book.chapter(n).number)
    if as_json:
        report.show_json([asdict(entry) for entry in entries])
        return
    report.show_table(
        ["file", "lines#", "from", "mark"],
        [(e.path, e.lines, e.owner, e.mark) for e in entries],
        title=f"minisgl at {book.chapter(n).name}",
    )


def diff(
    n: Which,
    file: Annotated[str | None, typer.Argument(help="Only this file.")] = None,
) -> None:
    """Show what chapter N changed in the package, as a unified diff."""
    book = Book.load()
    path = None if file is None else book.lookup(file)
    report.show_diff(show.chapter_diff(book, book.chapter(n).number, path))


def owns(
    file: Annotated[
        str, typer.Argument(help="A package file: kvcache/base.py.")
    ],
    as_json: Json = False,
) -> None:
    """Show which chapters hold which version of a package file."""
    book = Book.load()
    found = show.versions(book, book.lookup(file))
    if as_json:
        report.show_json([asdict(version) for version in found])
        return
    report.show_table(
        ["chapter", "verb", "in force", "lines#", "text"],
        [
            (v.chapter, v.verb, f"{v.first}..{v.last}", v.lines, v.source)
            for v in found
        ],
    )


def register(app: typer.Typer) -> None:
    """Add the reading commands to `app`."""
    app.command("list")(list_chapters)
    app.command()(tree)
    app.command()(diff)
    app.command()(owns)
