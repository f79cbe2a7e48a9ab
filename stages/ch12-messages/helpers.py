"""What main.py needs beside messages: a prompt, a clock, a busy thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from threading import Event, Thread
from time import perf_counter
from typing import Any

import numpy as np

from tools.stagekit import encode_chat, load_tokenizer, measured, model_path
from tools.zoo.places import ModelError


def prompt_ids(model: str, text: str) -> np.ndarray:
    """The tokens of a text as a user's message, int32 [n]."""
    try:
        ids = encode_chat(load_tokenizer(model_path(model)), text)
    except (ModelError, ValueError) as error:
        raise SystemExit(str(error)) from None
    return np.array(ids, dtype=np.int32)


def timed(action: Callable[[], Any], count: int = 100) -> str:
    """How long an action takes: the median of `count`."""
    times = [perf_counter()]
    for _ in range(count):
        action()
        times.append(perf_counter())
    spans = [1000 * (b - a) for a, b in pairwise(times)]
    return measured(median(spans), "ms", 2)


@contextmanager
def busy_thread() -> Iterator[str]:
    """A thread of this process that computes, while the block runs."""
    stop = Event()

    def compute() -> None:
        while not stop.is_set():
            pass

    Thread(target=compute).start()
    try:
        yield "a busy thread"
    finally:
        stop.set()
