"""steps.py as a command: the parts that run no chapter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.linting import FROZEN
from tests.tools.planted import (
    CORE01,
    copy_tools,
    edit,
    git,
    git_init,
    write,
    write_book,
)
from tools.steplib import reverts, venv
from tools.steplib.book import Book, ManifestError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_book(tmp_path / "book")


def steps(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/steps.py", *args]
    return subprocess.run(command, cwd=root, capture_output=True, text=True)


def test_commands(root, tmp_path):
    copy_tools(root)
    git_init(root)
    assert "The radix cache" in steps(root, "list").stdout
    assert json.loads(steps(root, "list", "--json").stdout)[2]["lines"] == 58
    tree = json.loads(steps(root, "tree", "ch02", "--json").stdout)
    marks = {entry["path"]: entry["mark"] for entry in tree}
    assert marks["radix.py"] == "new" and marks["core.py"] == "changed"
    owners = json.loads(steps(root, "owns", FROZEN, "--json").stdout)
    assert [v["source"] for v in owners] == [FROZEN, "minisgl/core.py"]
    text = steps(root, "diff", "2", "core.py").stdout
    assert (
        "+from minisgl.radix import RadixCache\n" in text and "\x1b" not in text
    )
    assert steps(root, "build", "1", str(tmp_path / "out")).returncode == 0
    assert (tmp_path / "out/minisgl/core.py").read_text() == CORE01
    wrong = steps(root, "owns", "cor.py")
    assert wrong.returncode == 2 and "did you mean core.py" in wrong.stderr
    assert steps(root, "build", "1", str(tmp_path / "out")).returncode == 2


def test_lint_command(root):
    copy_tools(root)
    assert steps(root, "lint").returncode == 0
    write(root, "minisgl/stray.py", "")
    done = steps(root, "lint")
    assert done.returncode == 1
    assert (
        done.stdout == "minisgl/stray.py:1: ch02: no manifest names this file\n"
    )
    assert (
        json.loads(steps(root, "lint", "--json").stdout)[0]["chapter"] == "ch02"
    )


def test_backport_command_writes_nothing_on_conflict(root):
    copy_tools(root)
    git_init(root)
    edit(
        root,
        "minisgl/core.py",
        "    return RadixCache()",
        "    return RadixCache(1)",
    )
    done = steps(root, "backport", "1", "core.py")
    assert (
        done.returncode == 1 and "1 conflicts, nothing written" in done.stderr
    )
    assert (root / FROZEN).read_text() == CORE01
    assert (
        steps(root, "backport", "1", "core.py", "--force-markers").returncode
        == 1
    )
    assert "<<<<<<< ch01-core" in (root / FROZEN).read_text()


PATCH = """\
# test: tests/test_ch02_radix.py::test_remembers
# fault: A kept sum is returned one too high.
--- a/minisgl/radix.py
+++ b/minisgl/radix.py
@@ -19,2 +19,2 @@
         \"\"\"Keep `value` for `key`.\"\"\"
-        self.kept[key] = value
+        self.kept[key] = value + 1
"""


def test_revert_brings_the_fault_back(root):
    copy_tools(root)
    write(root, "tests/reverts/1-radix.patch", PATCH)
    git_init(root)
    done = steps(root, "revert", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "fault 1: A kept sum is returned one too high."
    assert lines[1].endswith("test_remembers is green")
    assert lines[-2].endswith("test_remembers is red")
    copy = root / ".cache/revert-1"
    assert lines[-1] == "the copy with the fault: .cache/revert-1"
    assert "value + 1" in (copy / "minisgl/radix.py").read_text()
    assert "value + 1" not in (root / "minisgl/radix.py").read_text()


def test_revert_says_what_there_is(root, tmp_path):
    book = Book.load(root)
    with pytest.raises(ManifestError, match=r"fault 2 .* there are: none yet"):
        reverts.find(root, 2)
    write(root, "tests/reverts/1-radix.patch", PATCH)
    with pytest.raises(ManifestError, match=r"there are: 1 \(A kept sum"):
        reverts.find(root, 2)
    write(tmp_path, "full/precious.txt", "")
    with pytest.raises(ManifestError, match="is not empty"):
        reverts.prepare(book, reverts.find(root, 1), tmp_path / "full")
    write(
        root, "tests/reverts/1-radix.patch", PATCH.replace("# fault", "# falt")
    )
    with pytest.raises(ManifestError, match="begins with the lines"):
        reverts.faults(root)


def test_a_fault_whose_test_is_not_there_gives_no_verdict(root, tmp_path):
    write(
        root,
        "tests/reverts/1-x.patch",
        PATCH.replace("test_remembers", "test_no"),
    )
    book, fault = Book.load(root), reverts.find(root, 1)
    dest = reverts.prepare(book, fault, tmp_path / "copy")
    with pytest.raises(ManifestError, match="gives no verdict"):
        reverts.run_test(book, fault, dest)


def test_a_worktree_turns_to_the_main_checkouts_venv(root, tmp_path):
    git_init(root)
    write(root, ".venv/bin/python", "")
    git(root, "worktree", "add", "-q", str(tmp_path / "tree"))
    assert venv.main_checkout(tmp_path / "tree") == root
    assert list(venv.candidates(tmp_path / "tree")) == [
        root / ".venv/bin/python"
    ]


def test_an_interpreter_without_packages(root, tmp_path):
    """`-S` hides site-packages: run again in .venv, or say `make setup`."""
    copy_tools(root)
    command = [sys.executable, "-S", "tools/steps.py", "list"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 1 and "run `make setup` first" in done.stderr
    python = write(root, ".venv/bin/python", '#!/bin/sh\necho "again: $*"\n')
    os.chmod(python, 0o755)
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.stdout == "again: tools/steps.py list\n"
