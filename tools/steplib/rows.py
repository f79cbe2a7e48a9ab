"""The rows of ``tools/check.py``: what is verified, by which commands."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.steplib.pages import is_tag_tree


@dataclass(frozen=True)
class Row:
    """One verification: its commands run in order until one fails.

    A row with a `skip` reason is shown as a skip. Rows without commands are run by
    ``tools/check.py`` itself.
    """

    name: str
    commands: tuple[tuple[str, ...], ...] = ()
    skip: str = ""
    slow: bool = False  # left out by --fast


def rows(root: Path, full: bool = False) -> list[Row]:
    """Every row in the order of running; the test runner comes last."""
    python = sys.executable
    steps = (python, "tools/steps.py")
    # Not --quiet: it hides the warnings from --strict as well.
    mkdocs = (python, "-m", "mkdocs", "build", "--strict")
    extra = ("--full",) if full else ()
    return [
        Row(
            "ruff",
            (
                (python, "-m", "ruff", "check"),
                (python, "-m", "ruff", "format", "--check"),
            ),
        ),
        Row("mypy", ((python, "-m", "mypy"),)),
        Row("lint", ((*steps, "lint"),)),
        Row(
            "links",
            ((python, "-m", "tools.steplib.links"),),
            skip=_no_book(root),
        ),
        Row(
            "docs",
            (
                (*steps, "docs", "--check"),
                (python, "tools/diagrams.py", "--check"),
                (*mkdocs, "-f", "mkdocs.yml", "-d", ".cache/site"),
                (*mkdocs, "-f", "mkdocs.zh.yml", "-d", ".cache/site/zh"),
            ),
            skip=_no_book(root),
        ),
        Row(
            "nvcc",
            ((python, "tools/nvcc.py"),),
            skip="" if shutil.which("nvcc") else "nvcc is not installed",
            slow=True,
        ),
        Row(
            "tags",
            ((*steps, "tag", "--check"),),
            skip=_no_tags(root),
            slow=True,
        ),
        Row("stages", ((*steps, "check", *extra),), slow=True),
        Row(
            "exercises",
            ((*steps, "exercises", "--check"),),
            skip=_no_solutions(root),
            slow=True,
        ),
        Row("pytest"),
    ]


def _no_book(root: Path) -> str:
    """Why the book is not checked here, empty if it is."""
    return (
        "a tag's own tree holds part of the book" if is_tag_tree(root) else ""
    )


def _no_solutions(root: Path) -> str:
    """Why no exercise is proven here, empty if they are."""
    return "a tag's own tree holds no solutions" if is_tag_tree(root) else ""


def _no_tags(root: Path) -> str:
    """Why there are no tags to check here, empty if there should be some."""
    if is_tag_tree(root):
        return "a tag's own tree makes no tags"
    command = ["git", "-C", str(root), "rev-parse", "--is-inside-work-tree"]
    try:
        done = subprocess.run(command, capture_output=True)
    except OSError:
        return "git is not installed"
    return "no git repository here" if done.returncode else ""
