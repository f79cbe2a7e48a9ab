"""python -m minisgl.check_gpu: is everything right on this GPU?

Compares kernels, attention backends, CUDA graphs, overlap, and ranks with what
they stand for, and whole models with transformers. The models are small and
random, and made on the spot. Exit status 1 if anything failed.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer
from rich.console import Console

from minisgl.selfcheck.kernels import KERNELS
from minisgl.selfcheck.report import (
    Result,
    Setting,
    as_json,
    make_table,
    run_checks,
)
from minisgl.selfcheck.whole import whole_checks
from minisgl.utils import pick_device

# Modules, and the packages that bring them.
_PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
    "flashinfer": "flashinfer-python",
    "flash_attn": "flash-attn",
}


def about(device: torch.device) -> dict[str, str]:
    """The date, the device and the versions, for the table and the file."""
    name = "CPU"
    if device.type == "cuda":
        name = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    facts = {"date": datetime.now(UTC).date().isoformat(), "device": name}
    facts["python"] = platform.python_version()
    for module, package in _PACKAGES.items():
        try:
            facts[module] = version(package)
        except PackageNotFoundError:
            there = find_spec(module) is not None
            facts[module] = "of unknown version" if there else "missing"
    return facts


def check(setting: Setting, only: str = "") -> list[Result]:
    """Run all checks whose name holds `only`, one line each as they end."""
    named = {**KERNELS, **whole_checks(setting)}
    chosen = {name: run for name, run in named.items() if only in name}
    results = []
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    with console.status("") as status:
        left = iter(chosen)
        status.update(next(left, ""))
        for result in run_checks(chosen, setting):
            results.append(result)
            status.update(next(left, ""))
    return results


def main(
    device: Annotated[
        str, typer.Option(help="cuda, or cpu: what a CPU can check.")
    ] = "cuda",
    models: Annotated[
        Path | None,
        typer.Option(
            help="Where to keep the models that are made, for another time."
        ),
    ] = None,
    only: Annotated[
        str, typer.Option(help="Only checks whose name holds this.")
    ] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the result here too.")
    ] = None,
) -> None:
    """Compare what this machine computes with what it should."""
    try:
        where = pick_device(device)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    # Starting a model's progress bars would break the table.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        setting = Setting(where, models or Path(scratch))
        results = check(setting, only)
    if not results:
        raise SystemExit(f"error: no check is called {only!r}")
    facts = about(where)
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    Console(width=120).print(make_table(results))
    if json_file is not None:
        text = json.dumps(as_json(results, facts), indent=2)
        json_file.write_text(text + "\n")
    failed = [one.name for one in results if one.state == "FAILED"]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    typer.run(main)
