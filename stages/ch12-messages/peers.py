"""The processes beside main.py; none of them loads torch."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from minisgl.message import (
    BaseBackendMsg,
    BaseFrontendMsg,
    BaseTokenizerMsg,
    UserReply,
)
from minisgl.utils import ZmqPullQueue, ZmqPushQueue, ZmqSubQueue


@contextmanager
def process(role: str, base: str = "", count: int = 1) -> Iterator[str]:
    """Processes that run a function of this file, while the block runs."""
    command = [sys.executable, __file__, role, base]
    children = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield f"a {role} process"
    finally:
        for child in children:
            child.kill()
            child.wait()


def busy(base: str) -> None:
    """Compute in Python, as the text work of a server does."""
    while True:
        pass


def echo(base: str) -> None:
    """Send every text back, and say whether this process has torch."""
    ask = ZmqPullQueue(base + "ask", False, BaseTokenizerMsg.decoder)
    say = ZmqPushQueue(base + "say", False, BaseFrontendMsg.encoder)
    while True:
        msg = ask.get()
        torch = "with" if "torch" in sys.modules else "without"
        say.put(UserReply(msg.uid, f"{msg.text} ({torch} torch)", False))


def subscribe(base: str) -> None:
    """Note the numbers of all broadcasts up to 2, then tell them."""
    sub = ZmqSubQueue(base + "all", False, BaseBackendMsg.decoder)
    say = ZmqPushQueue(base + "say", False, BaseFrontendMsg.encoder)
    seen = [sub.get().uid]
    while 2 not in seen:
        seen.append(sub.get().uid)
    say.put(UserReply(0, " ".join(map(str, seen)), True))
    say.stop()


if __name__ == "__main__":
    roles = {"busy": busy, "echo": echo, "subscribe": subscribe}
    roles[sys.argv[1]](sys.argv[2])
