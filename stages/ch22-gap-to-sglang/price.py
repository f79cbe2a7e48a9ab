"""What it costs to count."""

import time

from minisgl.message import UserReply
from minisgl.server.observer import Observer
from minisgl.server.request_log import Record


def seconds_a_token(tokens: int = 20_000, rounds: int = 5) -> float:
    """Of the quickest round: everything that is noted of a token."""
    observer, record = Observer(), Record(0, 0.0, "")
    reply = UserReply(0, " word", False, completion_tokens=1)
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for number in range(tokens):
            observer.replied(record, reply, number * 0.01)
        found.append(time.perf_counter() - begin)
    return min(found) / tokens
