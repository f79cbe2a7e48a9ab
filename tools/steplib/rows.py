"""The rows of ``tools/check.py``: what is verified, by which commands."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.steplib.pages import is_tag_tree

TESTS = {
    "examples": (
        "tests/tools/test_examples.py",
        "tests/tools/test_stored_outputs.py",
    ),
    "simulator": (
        "tests/test_ch19_simulator.py",
        "tests/test_ch19_kernels.py",
    ),
    "triton": (
        "tests/test_ch20_experts.py",
        "tests/test_ch23_fused.py",
    ),
    "films": ("tests/tools/test_videos.py",),
}
"""Rows of their own: commands that pages show, CUDA on a CPU, Triton's interpreter."""

OLDEST_NVCC = 11, 8
"""The first that compiles for sm_90."""


@dataclass(frozen=True)
class Row:
    """One verification: its commands run in order until one fails.

    A row with a `skip` reason is shown as a skip. A row without commands runs test
    files; without those, all that no other row runs.
    """

    name: str
    commands: tuple[tuple[str, ...], ...] = ()
    tests: tuple[str, ...] = ()
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
            ),
            skip=_no_book(root),
        ),
        Row(
            "book",
            (
                (*mkdocs, "-f", "mkdocs.yml", "-d", ".cache/site"),
                (*mkdocs, "-f", "mkdocs.zh.yml", "-d", ".cache/site/zh"),
            ),
            skip=_no_book(root),
        ),
        Row(
            "nvcc",
            ((python, "tools/nvcc.py"),),
            skip=_no_nvcc(),
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
        *(_tests(root, name) for name in TESTS),
        Row("pytest"),
    ]


def _tests(root: Path, name: str) -> Row:
    """A row of test files; on a tag some are not there yet."""
    files = tuple(file for file in TESTS[name] if (root / file).is_file())
    skip = "" if files else "the tests of it come in a later chapter"
    return Row(name, tests=files, skip=skip, slow=True)


def _no_book(root: Path) -> str:
    """Why the book is not checked here, empty if it is."""
    return (
        "a tag's own tree holds part of the book" if is_tag_tree(root) else ""
    )


def _no_solutions(root: Path) -> str:
    """Why no exercise is proven here, empty if they are."""
    return "a tag's own tree holds no solutions" if is_tag_tree(root) else ""


def _no_nvcc() -> str:
    """Why nothing is compiled here, empty if it is."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return "nvcc is not installed"
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True)
    found = re.search(r"release (\d+)\.(\d+)", done.stdout)
    if found is None:
        return "nvcc does not tell its version"
    if (int(found[1]), int(found[2])) < OLDEST_NVCC:
        oldest = ".".join(map(str, OLDEST_NVCC))
        return f"nvcc {found[1]}.{found[2]} is too old: sm_90 needs {oldest}"
    return ""


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
