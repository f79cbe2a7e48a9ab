"""Two ways to the same engine: call it, or send messages to its process."""

import multiprocessing
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from minisgl.core import SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.message import (
    BaseBackendMsg,
    BaseTokenizerMsg,
    BatchTokenizerMsg,
    DetokenizeMsg,
    UserMsg,
)
from minisgl.scheduler import Scheduler, SchedulerConfig
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir
from minisgl.scheduler.server import schedule_worker
from minisgl.utils import ZmqPullQueue, ZmqPushQueue

SPAWN = multiprocessing.get_context("spawn")


def config_for(path: str, **settings: Any) -> SchedulerConfig:
    """A small scheduler on the CPU in float32."""
    small = {"device": "cpu", "num_page_override": 4096} | settings
    return SchedulerConfig(path, DistributedInfo(0, 1), "float32", **small)


def message(uid: int, answer: int, prompt: int = 20) -> UserMsg:
    """A request for `answer` tokens; each has a prompt of its own."""
    params = SamplingParams(max_tokens=answer, ignore_eos=True)
    ids = (torch.arange(prompt, dtype=torch.int32) + 20 * uid) % 500
    return UserMsg(uid, ids, params)


class Peer:
    """Notes in `said` what has come about every request."""

    def __init__(self) -> None:
        self.said: dict[int, list[DetokenizeMsg]] = {}

    def ask(self, *msgs: BaseBackendMsg) -> None:
        raise NotImplementedError

    def _step(self) -> list[DetokenizeMsg]:
        """What the next step that has tokens sends."""
        raise NotImplementedError

    def step(self) -> None:
        for msg in self._step():
            self.said.setdefault(msg.uid, []).append(msg)

    def tokens(self, uid: int) -> list[int]:
        return [msg.next_token for msg in self.said.get(uid, [])]

    def until(self, *uids: int, count: int = 1 << 30) -> None:
        """Until each has ended or has `count` tokens."""
        for uid in uids:
            while len(self.tokens(uid)) < count:
                if self.tokens(uid) and self.said[uid][-1].finished:
                    break
                self.step()

    def typical(self, msgs: list[UserMsg], times: int) -> float:
        """Ask so often; the median seconds from one step's tokens to the next."""
        gaps: list[float] = []
        for _ in range(times):
            came, left = [perf_counter()], len(msgs)
            self.ask(*msgs)
            while left > 0:
                left -= sum(msg.finished for msg in self._step())
                came.append(perf_counter())
            gaps += [b - a for a, b in pairwise(came)]
        return median(gaps)


class Called(Peer):
    """A scheduler in this process."""

    def __init__(self, path: str) -> None:
        super().__init__()
        config = config_for(path, offline_mode=True)
        self.scheduler, self.data = Scheduler(config), None

    def ask(self, *msgs: BaseBackendMsg) -> None:
        self.scheduler.inbox += msgs

    @torch.inference_mode()
    def _step(self) -> list[DetokenizeMsg]:
        while not self.scheduler.outbox:
            self.data = self.scheduler.step(self.data)
        sent, self.scheduler.outbox = self.scheduler.outbox, []
        return sent


def work(config: SchedulerConfig, acks: Any) -> None:
    """What the process runs; an error is the last thing it acknowledges."""
    try:
        schedule_worker(config, acks)
    except Exception as error:
        acks.put(f"error: {type(error).__name__}: {error}")
        raise


class Server(Peer):
    """A scheduler in a process of its own, while a `with` block runs."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.config, self.acks = config_for(path), SPAWN.Queue()
        make_socket_dir(self.config)
        self.process = SPAWN.Process(target=work, args=(self.config, self.acks))
        self.process.start()
        self.requests: ZmqPushQueue[BaseBackendMsg] = ZmqPushQueue(
            self.config.zmq_backend_addr, False, BaseBackendMsg.encoder
        )
        self.replies: ZmqPullQueue[BaseTokenizerMsg] = ZmqPullQueue(
            self.config.zmq_detokenizer_addr, False, BaseTokenizerMsg.decoder
        )

    def __enter__(self) -> Self:
        self.ask(message(0, 1))
        while self.replies.empty():  # an error may come in its place
            line = self.acks.get() if not self.acks.empty() else ""
            if line.startswith("error"):
                self.__exit__()
                raise SystemExit(line)
            sleep(0.01)
        self.until(0)
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.join()
        self.requests.stop()
        self.replies.stop()
        remove_socket_dir(self.config)

    def exit_code(self) -> int | None:
        """Of the process, once it has ended."""
        self.process.join()
        return self.process.exitcode

    def ask(self, *msgs: BaseBackendMsg) -> None:
        for msg in msgs:
            self.requests.put(msg)

    def _step(self) -> list[DetokenizeMsg]:
        msg: Any = self.replies.get()
        return msg.data if isinstance(msg, BatchTokenizerMsg) else [msg]
