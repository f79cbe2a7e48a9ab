"""A tokenizer process and both ends of its road, for tests."""

import multiprocessing as mp
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from minisgl.message import (
    BaseBackendMsg,
    BaseFrontendMsg,
    BaseTokenizerMsg,
    BatchBackendMsg,
    BatchFrontendMsg,
)
from minisgl.tokenizer import tokenize_worker
from minisgl.utils import ZmqPullQueue, ZmqPushQueue

SECONDS = 30


def serve_and_tell(report: str, settings: dict[str, Any]) -> None:
    """What the process runs: the worker; how it ended goes into a file."""
    lines = []
    try:
        tokenize_worker(**settings)
    except SystemExit as stop:
        lines.append(f"exit {stop.code}")
        raise
    except BaseException:
        lines.append(traceback.format_exc())
        raise
    finally:
        heavy = {"torch", "transformers", "huggingface_hub"} & set(sys.modules)
        lines.append(f"loaded: {sorted(heavy)}")
        Path(report).write_text("\n".join(lines))


class Worker:
    """Starts a worker with `spawn`; ends it, if need be, with the block.

    Args:
        scratch: a folder with a short name, for sockets and the report.
        create: whether the worker creates its own address, or this side does.
        settings: of `tokenize_worker`.
    """

    def __init__(
        self, scratch: Path, model: Path, create: bool = True, **settings: Any
    ) -> None:
        base = f"ipc://{scratch}/"
        self.report = scratch / "report"
        self.backend = ZmqPullQueue(base + "b", True, BaseBackendMsg.decoder)
        self.frontend = ZmqPullQueue(base + "f", True, BaseFrontendMsg.decoder)
        self.inbox = ZmqPushQueue(
            base + "i", not create, BaseTokenizerMsg.encoder
        )
        self.inbox._socket.setsockopt(zmq.SNDTIMEO, 100)
        context = mp.get_context("spawn")
        self.ready = context.Queue()
        settings = {
            "tokenizer_path": str(model),
            "addr": base + "i",
            "create": create,
            "backend_addr": base + "b",
            "frontend_addr": base + "f",
            "local_bs": 8,
            "ack_queue": self.ready,
        } | settings
        self.process = context.Process(
            target=serve_and_tell, args=(str(self.report), settings)
        )
        self.requests: list[BaseBackendMsg] = []
        self.replies: list[BaseFrontendMsg] = []
        self.process.start()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.join()
        for queue in (self.inbox, self.backend, self.frontend):
            queue.stop()

    def put(self, *msgs: BaseTokenizerMsg) -> None:
        for msg in msgs:
            self._put(msg)

    def _put(self, msg: BaseTokenizerMsg) -> None:
        # Where this side created the address, a `put` to nobody would wait.
        until = time.monotonic() + SECONDS
        while True:
            assert self.process.is_alive(), self.last_words()
            assert time.monotonic() < until, "nobody takes it"
            with suppress(zmq.Again):
                return self.inbox.put(msg)

    def next_request(self) -> Any:
        """The next message to the backend."""
        while not self.requests:
            msg = self._get(self.backend)
            self.requests += (
                msg.data if isinstance(msg, BatchBackendMsg) else [msg]
            )
        return self.requests.pop(0)

    def next_reply(self) -> Any:
        """The next message to the front end."""
        while not self.replies:
            msg = self._get(self.frontend)
            self.replies += (
                msg.data if isinstance(msg, BatchFrontendMsg) else [msg]
            )
        return self.replies.pop(0)

    def _get(self, queue: ZmqPullQueue[Any]) -> Any:
        until = time.monotonic() + SECONDS
        while queue.empty():
            assert self.process.is_alive(), self.last_words()
            assert time.monotonic() < until, "nothing came"
            time.sleep(0.002)
        return queue.get()

    def text(self, uid: int) -> str:
        """All text of a request, up to its end, which is a good one."""
        pieces = []
        while True:
            reply = self.next_reply()
            assert reply.uid == uid
            assert reply.error is None, f"{uid}: {reply.error}"
            pieces.append(reply.incremental_output)
            if reply.finished:
                return "".join(pieces)

    def last_words(self) -> str:
        self.process.join(SECONDS)
        assert not self.process.is_alive(), "it does not end"
        return self.report.read_text() if self.report.is_file() else "no report"

    def assert_ends(self) -> None:
        """SIGTERM ends it well, and it has loaded nothing heavy."""
        self.process.terminate()
        assert self.last_words() == "exit 0\nloaded: []"
        assert self.process.exitcode == 0
