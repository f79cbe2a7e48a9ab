"""The command that applies the static rules."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tools.steplib import lint as rules
from tools.steplib import report, show
from tools.steplib.book import Book, ManifestError


def lint(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON.")
    ] = False,
) -> None:
    """Check the static rules of the book; one line a finding, exit 1 if any."""
    try:
        book = Book.load()
    except ManifestError as error:
        typer.echo(str(error))
        raise typer.Exit(1) from None
    findings = rules.run(book)
    if as_json:
        report.show_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            typer.echo(str(finding))
    if findings:
        typer.echo(f"lint: {len(findings)} findings", err=True)
        raise typer.Exit(1)
    if not as_json:
        typer.echo(f"lint: {len(book.chapters)} chapters ok")
        typer.echo(show.churn_total(show.churn(book)))


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(lint)
