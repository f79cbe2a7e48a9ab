"""What the commands print: Rich tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_DIFF_STYLES = {
    "+++": "bold",
    "---": "bold",
    "@@": "cyan",
    "+": "green",
    "-": "red",
}


def show_json(data: Any) -> None:
    """Print `data` as JSON, text kept as it is."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = ""
) -> None:
    """Print rows; a column whose name ends in ``#`` holds numbers.

    Without a terminal each row is one line of columns two spaces apart, so that
    grep and diff work on it; empty columns at the end leave no trailing spaces.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    names = [name.removesuffix("#") for name in columns]
    numeric = [name.endswith("#") for name in columns]
    if sys.stdout.isatty():
        _show_rich(names, numeric, cells, title)
        return
    widths = [
        max(len(row[i]) for row in [names, *cells]) for i in range(len(names))
    ]
    for row in [names, *cells]:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        print("  ".join(parts).rstrip())


def _show_rich(
    names: list[str], numeric: list[bool], rows: list[list[str]], title: str
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=title or None, title_justify="left", box=None, pad_edge=False
    )
    for name, right in zip(names, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    Console().print(table)


def show_diff(lines: Iterable[str]) -> None:
    """Print a unified diff, coloured on a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.writelines(lines)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for line in lines:
        style = next(
            (s for p, s in _DIFF_STYLES.items() if line.startswith(p)), ""
        )
        console.print(Text(line.rstrip("\n"), style=style), soft_wrap=True)
