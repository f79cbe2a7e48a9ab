"""Tables of results: in a terminal, as Markdown, as JSON."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

Value = str | float | int | list[float] | None


@dataclass
class Report:
    """A table, and what one has to know to measure the same again.

    rows: each a value by column; a column that a row lacks stays empty.
    setup: what was measured, and on what.
    """

    title: str
    columns: list[str]
    rows: list[dict[str, Value]] = field(default_factory=list)
    setup: dict[str, Any] = field(default_factory=dict)

    def show(self, console: Console) -> None:
        """Print it."""
        table = Table(title=self.title, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*(_text(row.get(c)) for c in self.columns))
        console.print(table)
        console.print(_setup(self.setup), style="dim", highlight=False)

    def markdown(self) -> str:
        """The table as Markdown, below its title."""
        lines = [f"**{self.title}**", ""]
        lines.append("| " + " | ".join(self.columns) + " |")
        marks = ["---", *["---:"] * (len(self.columns) - 1)]
        lines.append("| " + " | ".join(marks) + " |")
        for row in self.rows:
            cells = [_text(row.get(c)) for c in self.columns]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", _setup(self.setup), ""])

    def write(self, path: Path) -> None:
        """Write it to a file, .json or .md; raises as `check_name`."""
        check_name(path)
        text = self.markdown()
        if path.suffix == ".json":
            text = json.dumps(asdict(self), indent=2) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def check_name(path: Path) -> Path:
    """The path as it is, once it is known to be one for a report.

    Raises:
        ValueError: its name ends neither in .json nor in .md.
    """
    if path.suffix not in (".json", ".md"):
        raise ValueError(f"{path} ends neither in .json nor in .md")
    return path


def machine(device: torch.device) -> dict[str, Any]:
    """What it runs on."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "device": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(_text(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.{0 if value >= 1000 else 1 if value >= 10 else 2}f}"
    return f"{value:,}" if isinstance(value, int) else value


def _setup(setup: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in setup.items())
