"""Run the checker on a planted book and read what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.tools.planted import append, copy_tools, write_book

MAIN = "stages/ch01-core/main.py"
TEST = "tests/test_ch01_core.py"


def make_book(root: Path) -> Path:
    """The planted book with this repository's tools in it."""
    copy_tools(write_book(root))
    return root


def check(
    root: Path, *options: str, python: str = sys.executable
) -> tuple[int, str, str]:
    """Exit code, standard output and error of ``steps.py check``."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MINISGL_")}
    done = subprocess.run(
        [python, str(root / "tools/steps.py"), "check", *options],
        cwd=root, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def verdicts(root: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Chapter id -> its result, from ``check --json``."""
    _, out, err = check(root, *options, "--json")
    assert out, err
    return {row["chapter"]: row for row in json.loads(out)["chapters"]}


def red(root: Path, *options: str) -> list[str]:
    """Ids of the chapters that fail."""
    return [c for c, row in verdicts(root, *options).items() if not row["ok"]]


def messages(row: dict[str, Any]) -> str:
    """All that is wrong with a chapter, one a line."""
    return "\n".join(f"{f['where']}: {f['message']}" for f in row["failures"])


def add_test(root: Path, body: str) -> None:
    """Append a test function with this body to ch01's tests."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    append(root, TEST, f"\n\ndef test_planted():\n{lines}\n")
