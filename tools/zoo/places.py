"""Where checkpoints and caches live, in the main checkout and in every copy of it."""

import os
import subprocess
from functools import lru_cache
from pathlib import Path


class ModelError(Exception):
    """A checkpoint cannot be made, found or fetched; the text is one line."""


@lru_cache(maxsize=1)
def main_checkout() -> Path:
    """Root of the main checkout, also when this file lies in a git worktree.

    A worktree shares the git folder of the checkout it was made from, and so finds
    the models that are already there. Without git it is the folder above `tools/`.
    """
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "rev-parse", "--path-format=absolute"]
    try:
        done = subprocess.run(
            [*command, "--git-common-dir"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return root
    common = Path(done.stdout.strip())
    # A build folder may lie inside some unrelated repository: look before trusting it.
    ours = (
        common.name == ".git"
        and (common.parent / "tools" / "models.py").is_file()
    )
    return common.parent if ours else root


def models_dir() -> Path:
    """Folder of the checkpoints: MINISGL_MODELS, else `models/`."""
    return _from_env("MINISGL_MODELS") or main_checkout() / "models"


def cache_dir() -> Path:
    """Folder of wheels and parity references: MINISGL_CACHE, else `.cache/`."""
    return _from_env("MINISGL_CACHE") or main_checkout() / ".cache"


def _from_env(name: str) -> Path | None:
    value = os.environ.get(name, "")
    return Path(value).expanduser().resolve() if value else None
