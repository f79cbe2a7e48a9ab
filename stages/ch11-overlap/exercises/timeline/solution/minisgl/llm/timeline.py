"""What the host does while the device has work: a time line of the loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from minisgl.llm.llm import LLM
from minisgl.scheduler.scheduler import ForwardData, ForwardInput

__all__ = ["Span", "TimedLLM", "hidden_time"]


class Span(NamedTuple):
    """Something that went on from `start` to `end`, in seconds."""

    name: str
    start: float
    end: float


def hidden_time(work: list[Span], flights: list[Span]) -> float:
    """Seconds of `work` during which some batch was in flight.

    Spans of work do not overlap one another; those of flights may, and a second
    that lies in two of them counts once.
    """
    covered: list[list[float]] = []
    for _, start, end in sorted(flights, key=lambda span: span.start):
        if covered and start <= covered[-1][1]:
            covered[-1][1] = max(covered[-1][1], end)
        else:
            covered.append([start, end])
    return sum(
        max(0.0, min(span.end, end) - max(span.start, start))
        for span in work
        for start, end in covered
    )


class TimedLLM(LLM):
    """An LLM that notes when it launched and when it dealt with tokens.

    work: what the host did: a `launch` and a `process` for every batch.
    flights: for every batch, from the end of its launch until the host turns to
        its tokens. The device may compute all that time.
    """

    def __init__(
        self,
        model_path: str,
        clock: Callable[[], float] = time.perf_counter,
        **kwargs: Any,
    ) -> None:
        super().__init__(model_path, **kwargs)
        self._clock = clock
        self.work: list[Span] = []
        self.flights: list[Span] = []
        self._launched: deque[float] = deque()

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        """Add what goes on inside to `work`."""
        start = self._clock()
        try:
            yield
        finally:
            self.work.append(Span(name, start, self._clock()))

    def _launch(self, forward_input: ForwardInput | None) -> ForwardData | None:
        """As the parent's; notes the work, if there is any, and the take-off."""
        if forward_input is None:
            return None
        with self._noted("launch"):
            data = super()._launch(forward_input)
        self._launched.append(self.work[-1].end)
        return data

    def _process_last_data(self, last_data: ForwardData | None) -> None:
        """As the parent's; notes the work, if there is any, and the flight.

        Batches come back in the order in which they were launched.
        """
        if last_data is None:
            return
        with self._noted("process"):
            super()._process_last_data(last_data)
        taken_off, landed = self._launched.popleft(), self.work[-1].start
        self.flights.append(Span("flight", taken_off, landed))

    def hidden_share(self) -> float:
        """The part of `process` that went on beside a batch, from 0 to 1."""
        work = [span for span in self.work if span.name == "process"]
        whole = sum(span.end - span.start for span in work)
        return hidden_time(work, self.flights) / whole if whole else 0.0
