"""Jobs in forked children of a parent that has paid for the slow imports.

The parent is single-threaded, so that no lock is held when it forks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tools.steplib.child import Job, run_child

_POLL = 0.005


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
    """Runs tasks; at most `workers` children live at a time.

    Jobs start in their order, so that results come one by one. Only one of several
    workers takes the heaviest that is left: none is to be alone with it in the end.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.ahead = 0  # the child that was started out of order
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
            self._start()
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

    def _start(self) -> None:
        heaviest = self.workers > 1 and self.ahead not in self.running
        at = 0
        if heaviest:
            at = max(range(len(self.queue)), key=self._weight)
        pending, slot, job = self.queue[at]
        del self.queue[at]
        pid = _fork(job)
        self.running[pid] = (pending, slot, job, time.monotonic())
        if heaviest:
            self.ahead = pid

    def _weight(self, index: int) -> float:
        return self.queue[index][2].weight


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
            code = run_child(job)
        finally:
            os._exit(code)
    with suppress(OSError):  # the child does the same; whoever comes first
        os.setpgid(pid, pid)
    return pid
