"""Checks, what became of them, and the table that shows it."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
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
    """Where to check: a device, and a folder that models are made in."""

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
    """Run each; whatever one raises but Skip is its failure, not the end.

    A kernel that reads where nothing is takes the whole device away from this
    process. What would come after it fails with that reason, at once.
    """
    lost_by = None
    for name, check in checks.items():
        start = time.perf_counter()
        if lost_by is None:
            state, note = _run(check, setting)
        else:
            state, note = "FAILED", f"not run: the device was lost in {lost_by}"
        yield Result(name, state, time.perf_counter() - start, note)
        if state == "FAILED" and lost_by is None and not _is_alive(setting):
            lost_by = name


def _run(check: Check, setting: Setting) -> tuple[str, str]:
    on_gpu = setting.device.type == "cuda"
    try:
        with nullcontext() if on_gpu else simulated_kernels():
            note = check(setting)
        if on_gpu:
            torch.cuda.synchronize()
        return "ok", note
    except Skip as reason:
        return "skip", str(reason)
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip() or type(error).__name__
        return "FAILED", text.splitlines()[0][:200]
    finally:
        if on_gpu:
            gc.collect()  # engines hold themselves in circles


def _is_alive(setting: Setting) -> bool:
    if setting.device.type != "cuda":
        return True
    try:
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


_STYLES = {"ok": "green", "skip": "yellow", "FAILED": "bold red"}


def make_table(results: list[Result]) -> Table:
    """One row a check."""
    table = Table()
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
