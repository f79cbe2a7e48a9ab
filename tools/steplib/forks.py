"""Jobs in forked children of a parent that has paid for the slow imports.

The parent computes nothing: a child of a process that has run an OpenMP region
hangs. It is single-threaded, so that no lock is held when it forks.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from multiprocessing import process, util
from pathlib import Path
from types import ModuleType
from typing import Any

from _pytest.config import default_plugins

from tools.steplib import guard

_POLL = 0.005
PRELOAD = {
    "": ["asyncio", "difflib", "gzip", "hypothesis", "pdb", "runpy"],
    "numpy": ["numpy"],
    "torch": ["torch", "torch._subclasses.schema_check_mode"],
    "typer": ["typer", "typer.testing"],
    "rich": ["rich.console", "rich.table", "rich.live"],
    "safetensors": ["safetensors.torch", "safetensors.numpy"],
    "tokenizers": ["tokenizers"],
    "transformers": [
        "transformers.generation",
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.qwen2.modeling_qwen2",
        "transformers.models.qwen3.modeling_qwen3",
        "transformers.models.llama.modeling_llama",
        "transformers.models.mistral.modeling_mistral",
    ],
}


def preload(texts: Sequence[str]) -> None:
    """Import what the source `texts` mention, without computing anything."""
    for word, modules in PRELOAD.items():
        if word and not any(word in text for text in texts):
            continue
        for name in modules:
            _import(name)
    for name in default_plugins:
        _import(f"_pytest.{name}")
    for entry in entry_points(group="pytest11"):
        _import(entry.module)
    gc.collect()
    gc.freeze()


def _import(name: str) -> None:
    with suppress(ImportError):  # the chapter that needs it will say so
        importlib.import_module(name)


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

    def file(self, kind: str) -> Path:
        """Where the child leaves `kind`: stdout, stderr, result or leaks."""
        return self.build.parent / f"{self.build.name}.{self.name}.{kind}"


@dataclass(frozen=True)
class Outcome:
    """What came of a job; `value` is None when the child died or ran out of time."""

    value: dict[str, Any] | None
    seconds: float
    timed_out: bool
    stdout: str
    stderr: str
    leaks: list[str]


Task = Generator[list[Job], list[Outcome], Any]
"""A task yields jobs, is sent their outcomes, and returns its result."""


@dataclass
class _Pending:
    """The jobs of one step of a task, and the outcomes that are in."""

    index: int
    left: int
    outcomes: dict[int, Outcome] = field(default_factory=dict)


class Pool:
    """Runs tasks; at most `workers` children live at a time."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.queue: deque[tuple[_Pending, int, Job]] = deque()
        self.running: dict[int, tuple[_Pending, int, Job, float]] = {}

    def run(self, tasks: Sequence[Task]) -> Iterator[Any]:
        """Yield the tasks' results in their order, each as soon as it can be."""
        self.tasks, self.results = tasks, dict[int, Any]()
        try:
            for index in range(len(tasks)):
                self._advance(index, None)
            for index in range(len(tasks)):
                while index not in self.results:
                    self._step()
                yield self.results[index]
        finally:
            for pid in self.running:
                _kill(pid)

    def _advance(self, index: int, outcomes: list[Outcome] | None) -> None:
        task = self.tasks[index]
        try:
            jobs = next(task) if outcomes is None else task.send(outcomes)
        except StopIteration as stop:
            self.results[index] = stop.value
            return
        pending = _Pending(index, len(jobs))
        self.queue.extend((pending, slot, job) for slot, job in enumerate(jobs))
        if not jobs:
            self._advance(index, [])

    def _step(self) -> None:
        while self.queue and len(self.running) < self.workers:
            pending, slot, job = self.queue.popleft()
            self.running[_fork(job)] = (pending, slot, job, time.monotonic())
        time.sleep(_POLL)
        for pid, (pending, slot, job, started) in list(self.running.items()):
            seconds = time.monotonic() - started
            late = seconds > job.limit
            if late:
                _kill(pid)
            if os.waitpid(pid, 0 if late else os.WNOHANG)[0]:
                del self.running[pid]
                _kill(pid)  # what the child started and left behind
                pending.outcomes[slot] = _collect(job, seconds, late)
                pending.left -= 1
                if not pending.left:
                    ordered = [
                        pending.outcomes[i] for i in sorted(pending.outcomes)
                    ]
                    self._advance(pending.index, ordered)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _collect(job: Job, seconds: float, late: bool) -> Outcome:
    texts = {}
    for kind in ("stdout", "stderr", "result", "leaks"):
        path = job.file(kind)
        texts[kind] = (
            path.read_text("utf-8", "replace") if path.is_file() else ""
        )
        path.unlink(missing_ok=True)
    value = (
        json.loads(texts["result"]) if texts["result"] and not late else None
    )
    leaks = list(dict.fromkeys(texts["leaks"].splitlines()))
    return Outcome(
        value, seconds, late, texts["stdout"], texts["stderr"], leaks
    )


def _fork(job: Job) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = _child(job)
        finally:
            os._exit(code)
    with suppress(OSError):  # the child does the same; whoever comes first
        os.setpgid(pid, pid)
    return pid


def _child(job: Job) -> int:
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
