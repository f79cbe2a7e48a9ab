"""A process of the server, seen from inside and from its parent."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

from minisgl.utils import init_logger

logger = init_logger(__name__)

# What a process says last, if it fails.
_FAILED = "failed: "
# At the start, mistakes of the user or of the machine.
_EXPECTED = (ValueError, OSError, RuntimeError)


class AckPipe:
    """The child's end of a pipe, with the `put` of a queue.

    A queue has locks, and who is killed while it holds one stops all others.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.used = False

    def put(self, word: str) -> None:
        self.used = True
        with suppress(OSError):  # the parent may be gone
            self._pipe.send_bytes(word.encode())


def run_child(
    name: str,
    target: Callable[..., None],
    kwargs: Mapping[str, Any],
    pipe: Connection,
    socket_dir: Path,
) -> None:
    """The main function of a child: run `target` and report how it failed."""
    Thread(target=_end_with_parent, args=(socket_dir,), daemon=True).start()
    acks = AckPipe(pipe)
    try:
        target(**kwargs, ack_queue=acks)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.code, str):
            raise
        acks.put(_FAILED + _explain(name, error, starting=not acks.used))
        sys.exit(1)


def _explain(name: str, error: BaseException, starting: bool) -> str:
    """The error as one line; where that is no use a traceback is logged."""
    reason = " ".join(str(error).split())
    if isinstance(error, SystemExit):  # it says already whose it is
        return reason
    told = isinstance(error, _EXPECTED) and reason
    if not (starting and told) or isinstance(error, NotImplementedError):
        logger.error(f"{name}: a mistake of the program", exc_info=error)
        reason = f"{type(error).__name__}: {reason}"
    return f"{name}: {reason}"


def _end_with_parent(socket_dir: Path) -> None:
    """Wait until the parent is dead, however it died; then end at once."""
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    # All of them do so; the last one leaves nothing.
    shutil.rmtree(socket_dir, ignore_errors=True)
    os._exit(1)


@dataclass(eq=False)
class Child:
    """The parent's view of a process that it has started.

    name: for messages to the user.
    says_ready: whether it reports when it can work.
    takes_exit: whether an ExitMsg ends it.
    """

    name: str
    process: BaseProcess
    pipe: Connection
    says_ready: bool = True
    takes_exit: bool = False
    ready: bool = field(default=False, init=False)
    failure: str = field(default="", init=False)
    gone: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @classmethod
    def start(
        cls,
        name: str,
        target: Callable[..., None],
        kwargs: Mapping[str, Any],
        socket_dir: Path,
        **traits: bool,
    ) -> Child:
        """Start `target(**kwargs, ack_queue=...)` in a new process.

        Ctrl-C in a terminal goes to all its processes, but only the parent is
        to act on it: a signal that is blocked here stays blocked there.
        """
        context = mp.get_context("spawn")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=run_child,
            args=(name, target, kwargs, theirs, socket_dir),
            name=name,
            daemon=True,
        )
        # Python's own helper, which would lift the block when it is started.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()
        return cls(name, process, ours, **traits)

    def listen(self) -> bool:
        """Take what it has said so far; False if it will say nothing more."""
        try:
            while self.pipe.poll():
                word = self.pipe.recv_bytes().decode()
                if word.startswith(_FAILED):
                    self.failure = word.removeprefix(_FAILED)
                else:
                    self.ready = True
        except (EOFError, OSError):
            return False
        return True

    def how_it_ended(self) -> str:
        """One line for the user."""
        self.listen()
        code = self.process.exitcode
        if self.failure:
            return self.failure
        if code is None or code >= 0:
            return f"{self.name}: ended with exit code {code}"
        how = signal.Signals(-code).name
        hint = "; is the memory full?" if -code == signal.SIGKILL else ""
        return f"{self.name}: killed by {how}{hint}"
