"""Bring one of upstream's faults back, in a copy, and watch its own test go red.

A patch ``tests/reverts/K-slug.patch`` is a unified diff against ``minisgl/`` below
two comment lines: ``# test: tests/test_x.py::test_y`` and ``# fault: one sentence``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.steplib.book import Book, ManifestError
from tools.steplib.venv import main_checkout

_COPIED = ("tests", "tools", "stages", "pyproject.toml")
_MARK = ".revert"
_SKIPPED = shutil.ignore_patterns("__pycache__")
_FAILED = 1  # pytest's exit code for tests that ran and failed


@dataclass(frozen=True)
class Fault:
    """A fault of upstream that this engine does not have, as a patch."""

    number: int
    patch: Path
    test: str
    sentence: str


def faults(root: Path) -> list[Fault]:
    """Every patch under ``tests/reverts``, by number.

    Raises:
        ManifestError: a patch lacks its ``# test:`` or ``# fault:`` line.
    """
    found = []
    for path in (root / "tests/reverts").glob("*-*.patch"):
        number = path.name.partition("-")[0]
        head = path.read_text(encoding="utf-8").split("\n", 2)[:2]
        match = re.fullmatch(
            r"# test: *(\S+) *\n# fault: *(.+?) *", "\n".join(head)
        )
        if match is None or not number.isdigit():
            raise ManifestError(
                f"{path}: a K-slug.patch begins with the lines "
                "'# test: FILE::TEST' and '# fault: SENTENCE'"
            )
        found.append(Fault(int(number), path, match[1], match[2]))
    return sorted(found, key=lambda fault: fault.number)


def find(root: Path, number: int) -> Fault:
    """The fault with this number.

    Raises:
        ManifestError: no patch has it; the message lists those there are.
    """
    known = faults(root)
    for fault in known:
        if fault.number == number:
            return fault
    there = "; ".join(f"{f.number} ({f.sentence})" for f in known) or "none yet"
    raise ManifestError(
        f"no patch for fault {number} in tests/reverts; there are: {there}"
    )


def prepare(book: Book, fault: Fault, dest: Path | None) -> Path:
    """Build the last chapter's package with the tests into `dest`; return the folder.

    `dest` defaults to ``.cache/revert-K``. A folder made by an earlier run is
    replaced.

    Raises:
        ManifestError: `dest` holds something else.
    """
    if dest is None:
        dest = main_checkout(book.root) / ".cache" / f"revert-{fault.number}"
    dest = dest.resolve()
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        if not (dest / _MARK).is_file():
            raise ManifestError(f"{dest} is not empty: choose another folder")
        shutil.rmtree(dest)
    dest.mkdir(parents=True, exist_ok=True)
    (dest / _MARK).write_text(f"{fault.patch.name}\n", encoding="utf-8")
    book.build(book.last, dest)
    for name in _COPIED:
        source = book.root / name
        if source.is_dir():
            shutil.copytree(source, dest / name, ignore=_SKIPPED)
        elif source.is_file():
            shutil.copyfile(source, dest / name)
    return dest


def apply(fault: Fault, dest: Path) -> None:
    """Apply the patch to the copy in `dest`.

    Raises:
        ManifestError: it does not fit today's package.
    """
    text = fault.patch.read_text(encoding="utf-8")
    strip = "-p1" if re.search(r"^\+\+\+ b/", text, re.MULTILINE) else "-p0"
    # Without the ceiling git would take the paths as those of a repository around.
    env = os.environ | {"GIT_CEILING_DIRECTORIES": str(dest.parent)}
    env.pop("GIT_DIR", None)
    done = subprocess.run(
        ["git", "apply", strip, "--recount", str(fault.patch)],
        cwd=dest,
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ManifestError(
            f"{fault.patch}: {done.stderr.strip().splitlines()[0]}"
        )


def reason(output: str) -> str:
    """What a test that failed has seen: the lines that pytest marks with an E."""
    found = [
        line[1:].strip()
        for line in output.splitlines()
        if line.startswith("E  ")
    ]
    # Below the message stands the comparison taken apart, which says it again.
    cut = [n for n, line in enumerate(found) if line.startswith("assert ")]
    return "\n".join(
        f"    {line}" for line in found[: min(cut, default=len(found))]
    )


def run_test(book: Book, fault: Fault, dest: Path) -> tuple[bool, str]:
    """Run the fault's test on the copy; (passed, output).

    Raises:
        ManifestError: the test did not come to a verdict (not found, not importable).
    """
    env = dict(os.environ)
    env.pop("PYTHONSAFEPATH", None)  # the copy comes first on the path
    env.setdefault("MINISGL_MODELS", str(main_checkout(book.root) / "models"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", fault.test],
        cwd=dest,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode not in {0, _FAILED}:
        raise ManifestError(
            f"{fault.test} gives no verdict:\n{done.stdout.rstrip()}"
        )
    return done.returncode == 0, done.stdout
