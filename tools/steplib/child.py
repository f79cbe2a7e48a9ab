"""What a forked child does: shed its parent, enter the build folder, do its job."""

from __future__ import annotations

import atexit
import io
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import process, util
from pathlib import Path
from types import ModuleType
from typing import Any

from tools.steplib import guard


@dataclass(frozen=True)
class Job:
    """Work for one child: `body` runs with `build` as its folder and its world."""

    name: str
    build: Path
    body: Callable[[], dict[str, Any]]
    limit: float
    env: dict[str, str]
    threads: int = 1
    setup: Callable[[], Any] | None = None
    """Makes `build`, in the child, so that children share that work too."""
    weight: float = 0.0
    """How long it may take, measured against others of the same pool."""

    def file(self, kind: str) -> Path:
        """Where the child leaves `kind`: stdout, stderr, result or leaks."""
        return self.build.parent / f"{self.build.name}.{self.name}.{kind}"


def run_child(job: Job) -> int:
    """Do `job` in this process, which was just forked; return its exit code."""
    os.setpgid(0, 0)
    _fresh_process(job)
    build, leaks = str(job.build), str(job.file("leaks"))
    code = 0
    try:
        if job.setup is not None:
            job.setup()
        os.chdir(job.build)
        guard.activate(build, leaks)
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(job.threads)
        value = job.body()
        scratch = job.file("scratch")
        scratch.write_text(json.dumps(value), encoding="utf-8")
        scratch.replace(job.file("result"))
    except BaseException:
        traceback.print_exc()
        code = 1
    guard.scan(build, leaks)
    with suppress(BaseException):
        util._exit_function()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        threading._shutdown()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _fresh_process(job: Job) -> None:
    """Shed what belongs to the parent: output, clean-up, main module, signals."""
    atexit._clear()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(job.env)
    tempfile.tempdir = None  # the parent's; the job's own is in its environment
    targets = {
        0: Path(os.devnull),
        1: job.file("stdout"),
        2: job.file("stderr"),
    }
    for number, path in targets.items():
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
        handle = os.open(path, flags, 0o644)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout = sys.__stdout__ = _text(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _text(2)  # type: ignore[misc]
    sys.dont_write_bytecode = True
    sys.modules["__main__"] = ModuleType(
        "__main__"
    )  # spawn would import the parent's
    process.ORIGINAL_DIR = str(job.build)  # type: ignore[attr-defined]


def _text(number: int) -> io.TextIOWrapper:
    raw = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", line_buffering=True
    )
