"""Watches over the processes of a server, and ends them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio import Future, Task
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from minisgl.message import SHUTTING_DOWN, BaseBackendMsg, ExitMsg
from minisgl.scheduler.addresses import remove_socket_dir
from minisgl.server.args import ServerArgs
from minisgl.server.child import Child
from minisgl.utils import ZmqPushQueue, init_logger

logger = init_logger(__name__)

# Seconds: for the scheduler to finish a step, for others to close their queues,
# and for the system to end what is killed.
_PATIENCE = (5.0, 2.0, 1.0)
# A signal to all processes of a server may reach the children first.
_AFTERTHOUGHT = 0.2


class End(NamedTuple):
    """Why a server ends: its exit code, and a line for users and clients."""

    code: int
    reason: str


class Supervisor:
    """Knows the children; the first reason to end is the one that counts.

    ended: a future, done with an `End` when the server has to stop.
    ready: a future, done when all children can work.
    interrupt: called at Ctrl-C; if it returns True that was all.
    started: when this began, on the monotonic clock.
    """

    def __init__(self, args: ServerArgs) -> None:
        self._args = args
        self._loop = asyncio.get_running_loop()
        self._children: list[Child] = []
        self.started = time.monotonic()
        self.ended: Future[End] = self._loop.create_future()
        self.ready: Future[None] = self._loop.create_future()
        self.interrupt: Callable[[], bool] = lambda: False
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._on_signal, number)

    def end(self, code: int, reason: str) -> None:
        """Ask for the end; only the first call counts."""
        if not self.ended.done():
            self.ended.set_result(End(code, reason))

    def run(self, work: Coroutine[Any, Any, None], end: End) -> Task[None]:
        """Start it; the server ends when it does, with `end` unless it fails."""
        task = self._loop.create_task(work)

        def ended(task: Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("a mistake of the program", exc_info=error)
                self.end(1, f"{type(error).__name__}: {error}")
            self.end(*end)

        task.add_done_callback(ended)
        return task

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGINT:
            if self.ended.done():
                self._leave_at_once()
            if self.interrupt():
                return
        self.end(0, SHUTTING_DOWN)

    def _leave_at_once(self) -> None:
        """For a user who presses Ctrl-C again while the server stops."""
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.process.join(_PATIENCE[-1])
        remove_socket_dir(self._args)
        os._exit(128 + signal.SIGINT)

    def watch(self, children: Iterable[Child]) -> None:
        """Notice when they are ready, and when one of them ends."""
        for child in children:
            self._children.append(child)
            pipe, sentinel = child.pipe.fileno(), child.process.sentinel
            self._loop.add_reader(pipe, self._hear, child)
            self._loop.add_reader(sentinel, self._bury, child)

    def _hear(self, child: Child) -> None:
        if not child.listen():  # it will say nothing more
            self._loop.remove_reader(child.pipe.fileno())
        ready = all(c.ready or not c.says_ready for c in self._children)
        if ready and not self.ready.done():
            self.ready.set_result(None)

    def _bury(self, child: Child) -> None:
        self._loop.remove_reader(child.process.sentinel)
        child.process.join()
        child.gone.set()
        reason = child.how_it_ended()
        self._loop.call_later(_AFTERTHOUGHT, self.end, 1, reason)

    async def wait_ready(self) -> bool:
        """Wait until all can work; False if the server has to end instead."""
        waited: set[Future[Any]] = {self.ready, self.ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        return not self.ended.done()

    async def stop(self) -> None:
        """End all children: asked to, then told to, then killed."""
        asked, told, killed = _PATIENCE
        schedulers = [c for c in self._alive() if c.takes_exit]
        if self.ready.done() and schedulers:
            self._send_exit()
            await self._wait_gone(schedulers, asked)
        for child in self._alive():
            child.process.terminate()
        await self._wait_gone(self._alive(), told)
        for child in self._alive():
            child.process.kill()
        await self._wait_gone(self._alive(), killed)

    def _alive(self) -> list[Child]:
        return [child for child in self._children if not child.gone.is_set()]

    def _send_exit(self) -> None:
        queue = ZmqPushQueue(
            self._args.zmq_backend_addr, False, BaseBackendMsg.encoder
        )
        queue.put(ExitMsg())
        queue.stop()

    async def _wait_gone(self, children: list[Child], seconds: float) -> None:
        waits = [child.gone.wait() for child in children]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*waits), seconds)
