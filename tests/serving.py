"""A scheduler behind its queues, as a test sees it: requests in, tokens out.

A `Client` holds the other ends of a scheduler's queues. A `Server` is a client with a
scheduler in a spawned process, whose stderr goes into a file. Whatever a test waits
for, it learns at once when the process has ended, and why.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from minisgl.core import SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.message import (
    AbortBackendMsg,
    AbortMsg,
    BaseBackendMsg,
    BaseTokenizerMsg,
    BatchTokenizerMsg,
    DetokenizeMsg,
    ExitMsg,
    UserMsg,
)
from minisgl.scheduler import SchedulerConfig
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir
from minisgl.scheduler.server import schedule_worker
from minisgl.utils import ZmqPullQueue, ZmqPushQueue

SPAWN = multiprocessing.get_context("spawn")
SECONDS = 120.0


def config_for(folder: Path, rank: int = 0, ranks: int = 1, **settings: Any):
    """A small scheduler on the CPU, in float32."""
    small = {"device": "cpu", "num_page_override": 512}
    info = DistributedInfo(rank, ranks)
    return SchedulerConfig(str(folder), info, "float32", **small | settings)


def user_msg(
    uid: int, ids: Sequence[int], max_tokens: int = 8, **params: Any
) -> UserMsg:
    """A request; end tokens are ignored unless asked for."""
    chosen = SamplingParams(
        max_tokens=max_tokens, **{"ignore_eos": True} | params
    )
    return UserMsg(uid, torch.tensor(ids, dtype=torch.int32), chosen)


def logged(log: str, target: Callable[..., None], *args: Any) -> None:
    """In a child: call `target` with stderr in a file."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(handle, 2)
    target(*args)


class Child:
    """A spawned process that runs a function; its stderr is in `log`."""

    def __init__(
        self, log: Path, target: Callable[..., None], *args: Any
    ) -> None:
        self.log = log
        self.process = SPAWN.Process(
            target=logged, args=(str(log), target, *args)
        )
        self.process.start()

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait_for(self, ready: Callable[[], Any], what: str) -> None:
        """Until `ready()`; fails soon after the process ended, or after SECONDS."""
        until = time.monotonic() + SECONDS
        while not ready():
            if (
                not self.process.is_alive()
            ):  # what it sent may still be on its way
                until = min(until, time.monotonic() + 1)
            if time.monotonic() > until:
                raise AssertionError(
                    f"waiting for {what}; exit code {self.process.exitcode}; the "
                    f"process said:\n{self.said()[-2000:]}"
                )
            time.sleep(0.001)

    def end(self) -> int | None:
        """Wait for its end; returns the exit code."""
        self.process.join(SECONDS)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class Client:
    """Sends requests to the addresses of `config` and notes what comes back.

    answers: tokens by request. ended: the last message about each.
    messages: what the queue brought, batches as they came.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        create = not config.backend_create_detokenizer_link
        self.requests: ZmqPushQueue[BaseBackendMsg] = ZmqPushQueue(
            config.zmq_backend_addr, False, BaseBackendMsg.encoder
        )
        self.replies: ZmqPullQueue[BaseTokenizerMsg] = ZmqPullQueue(
            config.zmq_detokenizer_addr, create, BaseTokenizerMsg.decoder
        )
        self.forget()

    def forget(self) -> None:
        self.answers: dict[int, list[int]] = {}
        self.ended: dict[int, DetokenizeMsg] = {}
        self.messages: list[BaseTokenizerMsg] = []

    def send(self, msg: BaseBackendMsg) -> None:
        self.requests.put(msg)

    def submit(
        self, uid: int, ids: Sequence[int], max_tokens: int = 8, **params: Any
    ) -> None:
        self.send(user_msg(uid, ids, max_tokens, **params))

    def abort(self, uid: int) -> None:
        self.send(AbortBackendMsg(uid))

    def take(self) -> None:
        """Note one message of the queue; waits for it."""
        msg = self.replies.get()
        if isinstance(msg, AbortMsg):  # for a detokenizer, of what it knows
            return
        self.messages.append(msg)
        many = msg.data if isinstance(msg, BatchTokenizerMsg) else [msg]
        for one in many:
            assert isinstance(one, DetokenizeMsg), one
            assert one.uid not in self.ended, f"a message after the end: {one}"
            ids = self.answers.setdefault(one.uid, [])
            ids += [one.next_token] * (one.next_token >= 0)
            if one.finished:
                self.ended[one.uid] = one

    def take_all(self) -> None:
        """Note what is here already."""
        while not self.replies.empty():
            self.take()

    def stop(self) -> None:
        self.requests.stop()
        self.replies.stop()


class Server(Client):
    """A client of a scheduler that runs in a process of its own."""

    def __init__(
        self,
        config: SchedulerConfig,
        log: Path,
        worker: Callable[..., None] = schedule_worker,
    ) -> None:
        make_socket_dir(config)
        super().__init__(config)
        self.acks: Any = SPAWN.Queue()
        self.child = Child(log, worker, config, self.acks)

    def wait_until_ready(self) -> None:
        self.child.wait_for(lambda: not self.acks.empty(), "the model")
        self.ack = self.acks.get()
        self.submit(-1, [])  # is refused, which takes a whole round trip
        self.collect(-1)
        self.forget()

    def wait(self, ready: Callable[[], Any], what: str) -> None:
        """Until `ready()`, which new messages may bring about."""
        while not ready():
            self.child.wait_for(lambda: not self.replies.empty(), what)
            self.take()

    def collect(self, *uids: int) -> dict[int, list[int]]:
        """The answers, once these requests have ended."""
        self.wait(lambda: self.ended.keys() >= {*uids}, f"the ends of {uids}")
        return self.answers

    def tokens(self, uid: int, count: int) -> None:
        """Wait for so many tokens of a request."""
        enough = lambda: len(self.answers.get(uid, [])) >= count  # noqa: E731
        self.wait(enough, f"{count} tokens of {uid}")

    def exit(self, *uids: int) -> int | None:
        """Say ExitMsg, wait for the last messages about `uids`; the exit code."""
        self.send(ExitMsg())
        self.collect(*uids)
        return self.child.end()

    def stop(self) -> None:
        self.child.kill()
        super().stop()
        remove_socket_dir(self.config)
