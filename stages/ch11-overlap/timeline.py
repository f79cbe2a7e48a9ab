"""An LLM that notes which batch is launched when, and whose tokens are read."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from minisgl.core import Batch
from minisgl.engine import ForwardOutput
from minisgl.llm import LLM
from minisgl.message import DetokenizeMsg
from minisgl.scheduler.scheduler import ForwardData, ForwardInput


class TimedLLM(LLM):
    """turns: for each turn of the loop what was launched and what was read.

    spent: seconds in all steps; of those, in forward_batch, and waiting for
        a batch to come back.
    """

    def __init__(self, path: str, **settings: Any) -> None:
        super().__init__(path, **settings)
        forward = self.engine.forward_batch

        def timed(batch: Batch, args: Any) -> ForwardOutput:
            with self._clock("forward"):
                return forward(batch, args)

        self.engine.forward_batch = timed  # type: ignore[method-assign]
        self.forget()

    def forget(self) -> None:
        """Start anew; the next request is called a."""
        self.turns: list[list[str]] = []
        self.spent = {"step": 0.0, "forward": 0.0, "wait": 0.0}
        self._launched = self._read = 0
        self._first = self._next_uid

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        start = perf_counter()
        yield
        self.spent[name] += perf_counter() - start

    def step(self, data: ForwardData | None) -> ForwardData | None:
        self.turns.append([])
        with self._clock("step"):
            return super().step(data)

    def _launch(self, forward_input: ForwardInput | None) -> ForwardData | None:
        data = super()._launch(forward_input)
        if data is not None:
            batch, self._launched = data.forward_input.batch, self._launched + 1
            text = (
                f"launch {self._launched} {batch.phase:8}{self._names(batch)}"
            )
            self.turns[-1].append(text)
        return data

    def _process_last_data(self, last_data: ForwardData | None) -> None:
        if last_data is None:
            return
        self._batch, self._read = last_data.forward_input.batch, self._read + 1
        with self._clock("wait"):
            last_data.output.copy_done_event.synchronize()
        super()._process_last_data(last_data)

    def send_result(self, reply: list[DetokenizeMsg]) -> None:
        """Note them as letters: a capital for a last token, - for a void one."""
        ends = {msg.uid: msg.finished for msg in reply}
        names, marks = self._names(self._batch), ""
        for req, name in zip(self._batch.reqs, names, strict=True):
            end = ends.get(req.uid)
            marks += "-" if end is None else name.upper() if end else name
        self.turns[-1].append(f"read {self._read} {marks}")
        super().send_result(reply)

    def _names(self, batch: Batch) -> str:
        return "".join(chr(97 + r.uid - self._first) for r in batch.reqs)
