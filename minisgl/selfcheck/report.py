"""Checks, what became of them, and the table that shows it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from minisgl.kernel.utils import simulated_kernels


class Skip(Exception):
    """A check cannot be made here; the text says why."""


@dataclass(frozen=True)
class Setting:
    """Where to check: a device, and a folder with the models by their kind."""

    device: torch.device
    models: Path


Check = Callable[[Setting], str]
"""Returns what it found in a few words, or raises Skip or AssertionError."""


@dataclass(frozen=True)
class Result:
    """state: ok, skip or FAILED."""

    name: str
    state: str
    seconds: float
    note: str


def run_checks(
    checks: Mapping[str, Check], setting: Setting
) -> Iterator[Result]:
    """Run each; whatever one raises but Skip is its failure, not the end."""
    for name, check in checks.items():
        start = time.perf_counter()
        state, note = _run(check, setting)
        yield Result(name, state, time.perf_counter() - start, note)


def _run(check: Check, setting: Setting) -> tuple[str, str]:
    try:
        if setting.device.type == "cuda":
            return "ok", check(setting)
        with simulated_kernels():
            return "ok", check(setting)
    except Skip as reason:
        return "skip", str(reason)
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip() or type(error).__name__
        return "FAILED", text.splitlines()[0][:200]


_STYLES = {"ok": "green", "skip": "yellow", "FAILED": "bold red"}


def make_table(results: list[Result], title: str) -> Table:
    """One row a check."""
    table = Table(title=title, title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("result")
    table.add_column("s", justify="right")
    table.add_column("what was found")
    for one in results:
        state = f"[{_STYLES[one.state]}]{one.state}[/]"
        table.add_row(one.name, state, f"{one.seconds:.1f}", one.note)
    return table


def as_json(results: list[Result], about: Mapping[str, str]) -> dict[str, Any]:
    """The same as data, with the date, the device and the versions."""
    return {**about, "checks": [asdict(one) for one in results]}
