"""The main function of a process that fails, for tests of who has started it."""

import sys
from typing import Any


def fail(kind: str, ack_queue: Any) -> None:
    """Leave in one of several bad ways, `late` once it was ready."""
    if kind == "late":
        ack_queue.put("here")
    if kind == "exit":
        sys.exit("it says why it leaves")
    raise (KeyError if kind == "mistake" else ValueError)("two\nlines")
