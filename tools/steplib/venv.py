"""Run in the right virtual environment, also on a tag checkout or in a worktree.

Standard library only: this runs before anything else could be imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NEEDED = ("typer", "torch")


def main_checkout(root: Path) -> Path:
    """The checkout that owns the git folder of `root`; `root` itself without git."""
    command = ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    except OSError:
        return root
    if done.returncode:
        return root
    return Path(done.stdout.strip()).parent


def candidates(root: Path) -> Iterator[Path]:
    """Interpreters worth trying: the checkout's own .venv, then the main one's."""
    bin_python = (
        ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
    )
    for folder in dict.fromkeys((root, main_checkout(root))):
        python = folder.joinpath(".venv", *bin_python)
        if python.is_file():
            yield python


def ensure(root: Path) -> None:
    """Return if this interpreter will do; else start over in a .venv that does.

    Raises:
        SystemExit: a package is missing and there is no .venv to turn to.
    """
    missing = [
        name for name in NEEDED if importlib.util.find_spec(name) is None
    ]
    if not missing:
        return
    for python in candidates(root):
        if Path(sys.prefix).resolve() != python.parents[1].resolve():
            os.execv(python, [str(python), *sys.argv])
    raise SystemExit(
        f"{' and '.join(missing)} missing here: run `make setup` first"
    )
