"""The tokenizer process beside main.py, and both ends of its road."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from minisgl.message import (
    BaseBackendMsg,
    BaseFrontendMsg,
    BaseTokenizerMsg,
    DetokenizeMsg,
    TokenizeMsg,
    UserReply,
)
from minisgl.tokenizer import tokenize_worker
from minisgl.utils import ZmqPullQueue, ZmqPushQueue


class Worker:
    """What a client and a scheduler would do, one message at a time."""

    def __init__(self, base: str, child: subprocess.Popen[str]) -> None:
        self.child = child
        self.ask = ZmqPushQueue(base + "ask", False, BaseTokenizerMsg.encoder)
        self.back = ZmqPullQueue(base + "back", True, BaseBackendMsg.decoder)
        self.front = ZmqPullQueue(base + "front", True, BaseFrontendMsg.decoder)

    def prompt(self, msg: TokenizeMsg) -> list[int]:
        """The tokens of a request, as they get to the scheduler."""
        self.ask.put(msg)
        ids: list[int] = self._next(self.back, self.front).input_ids.tolist()
        return ids

    def piece(self, msg: DetokenizeMsg) -> str:
        """What the client gets when this token comes."""
        self.ask.put(msg)
        text: str = self._next(self.front).incremental_output
        return text

    def _next(self, *queues: ZmqPullQueue[Any]) -> Any:
        while all(queue.empty() for queue in queues):
            if self.child.poll() is not None and self.child.stderr:
                raise RuntimeError(self.child.stderr.read())
            sleep(0.001)
        msg = next(queue for queue in queues if not queue.empty()).get()
        if isinstance(msg, UserReply) and msg.error is not None:
            raise ValueError(msg.error)
        return msg


@contextmanager
def start_worker(base: str, model_path: Path) -> Iterator[Worker]:
    """Run a tokenizer process while the block does; it gets SIGTERM then."""
    command = [sys.executable, __file__, base, str(model_path)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield Worker(base, child)
    finally:
        child.terminate()
        child.wait()


def serve(base: str, model_path: str) -> None:
    """Be that process, and tell in the end what it has loaded."""
    try:
        tokenize_worker(
            tokenizer_path=model_path,
            addr=base + "ask",
            create=True,
            backend_addr=base + "back",
            frontend_addr=base + "front",
            local_bs=32,
        )
    finally:
        torch = "with" if "torch" in sys.modules else "without"
        print(f"the process ends, {torch} torch", flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
