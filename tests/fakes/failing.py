"""The main function of a process that fails, for tests of who has started it."""

import sys
from typing import Any


def fail(kind: str, ack_queue: Any) -> None:
    """Say something, then leave in one of several bad ways."""
    ack_queue.put("here")
    if kind == "exit":
        sys.exit("it says why it leaves")
    raise {"mistake": KeyError, "expected": ValueError}[kind]("two\nlines")
