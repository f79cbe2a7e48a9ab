"""Run pytest over test files, in two processes where there are two cores.

Files are dealt out by the seconds they took last time (by size when new). Counts
come from the JUnit reports, so that the sum over processes is exact.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

KINDS = ("failed", "passed", "skipped", "errors")
# Tests compare float32 results and share the cores: one thread each.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class Outcome:
    """What one or several pytest processes counted.

    files: by test file; what cannot be told from a report is under "".
    seconds: by test file.
    """

    files: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        return sum(self.files.values(), Counter())

    @property
    def green(self) -> bool:
        bad = self.counts["failed"] + self.counts["errors"]
        return self.counts["passed"] > 0 and not bad

    def add(self, file: str, kind: str) -> None:
        """Count a test of a file."""
        self.files.setdefault(file, Counter())[kind] += 1

    def take(self, names: Collection[str]) -> Outcome:
        """The part of some files, which is no longer in this one."""
        found = Outcome()
        for name in names:
            if name in self.files:
                found.files[name] = self.files.pop(name)
                found.seconds[name] = self.seconds.pop(name, 0.0)
        return found

    def line(self, seconds: float) -> str:
        """The test runner's summary line: ``123 passed, 2 skipped in 45.1s``."""
        counts = self.counts
        parts = [f"{counts[kind]} {kind}" for kind in KINDS if counts[kind]]
        return f"{', '.join(parts) or 'no tests ran'} in {seconds:.1f}s"


def read_report(path: Path, outcome: Outcome) -> None:
    """Add the counts and times of one JUnit report to `outcome`."""
    for case in ElementTree.parse(path).iter("testcase"):
        tags = {child.tag for child in case}
        kind = next(
            (
                name
                for tag, name in (
                    ("error", "errors"),
                    ("failure", "failed"),
                    ("skipped", "skipped"),
                )
                if tag in tags
            ),
            "passed",
        )
        file = case.get("file", "")
        outcome.add(file, kind)
        spent = outcome.seconds.get(file, 0.0) + float(case.get("time", "0"))
        outcome.seconds[file] = spent


def deal(weights: dict[str, float], shards: int) -> list[list[str]]:
    """Split files into at most `shards` lists of about equal weight, heaviest first."""
    lists: list[list[str]] = [[] for _ in range(shards)]
    loads = [0.0] * shards
    for name in sorted(weights, key=lambda n: (-weights[n], n)):
        lightest = loads.index(min(loads))
        lists[lightest].append(name)
        loads[lightest] += weights[name]
    return [names for names in lists if names]


def weigh(root: Path, memory: Path) -> dict[str, float]:
    """Test files below ``tests/`` -> seconds of the last run, or a guess by size."""
    known = _known(memory)
    paths = sorted((root / "tests").rglob("test_*.py"))
    names = {path.relative_to(root).as_posix(): path for path in paths}
    return {n: known.get(n, p.stat().st_size / 1e4) for n, p in names.items()}


def _known(memory: Path) -> dict[str, float]:
    """Seconds of the last runs, by file."""
    if not memory.is_file():
        return {}
    found: dict[str, float] = json.loads(memory.read_text(encoding="utf-8"))
    return found


def run(
    root: Path,
    log: IO[str],
    cache: Path,
    full: bool,
    files: Collection[str] | None = None,
) -> Outcome:
    """Run test files; the output goes to `log`, one process after the other.

    files: below `root`; every one there is, if None.

    A process that ends in any other way than pytest's own counts as an error.
    """
    cache.mkdir(parents=True, exist_ok=True)
    memory = cache / "durations.json"
    weights = weigh(root, memory)
    if files is not None:
        weights = {name: weights[name] for name in files}
    shards = deal(weights, 2 if (os.cpu_count() or 1) > 1 else 1)
    started = [
        _start(root, cache, at, files, full) for at, files in enumerate(shards)
    ]
    outcome = Outcome()
    for process, report, output in started:
        code = process.wait()
        log.write(output.read_text(encoding="utf-8", errors="replace"))
        if report.is_file():
            read_report(report, outcome)
        if code not in (0, 1, 5):  # 5: every test of the process was deselected
            log.write(f"\npytest ended with status {code}\n")
            outcome.add("", "errors")
        elif code == 1 and outcome.green:
            outcome.add("", "errors")
    times = _known(memory) | outcome.seconds
    memory.write_text(json.dumps(times, indent=1), encoding="utf-8")
    return outcome


def _start(
    root: Path, cache: Path, at: int, files: list[str], full: bool
) -> tuple[subprocess.Popen[str], Path, Path]:
    report, output = cache / f"pytest-{at}.xml", cache / f"pytest-{at}.txt"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}"]
    command += [
        "-o",
        "junit_family=xunit1",
        "-o",
        f"cache_dir={cache}/pytest-{at}",
    ]
    command += [*([] if full else ["-m", "not slow"]), *files]
    with output.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, **ENVIRONMENT},
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
        )
    return process, report, output
