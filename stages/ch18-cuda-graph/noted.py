"""An LLM that notes how each step was run, and inputs that are forgotten."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from time import perf_counter
from typing import Any

import torch

from minisgl.core import Batch
from minisgl.engine.graph import GraphCaptureBuffer
from minisgl.llm import LLM

FIELDS = ("input_ids", "positions", "out_loc")


class NotedLLM(LLM):
    """steps: phase, requests and padded size of each; seconds: of decode ones."""

    def __init__(self, path: str, **settings: Any) -> None:
        super().__init__(path, **settings)
        self.steps: list[tuple[str, int, int]] = []
        self.seconds: list[float] = []
        run = self.engine._run_model

        def noted(batch: Batch) -> torch.Tensor:
            self.steps.append((batch.phase, batch.size, batch.padded_size))
            begin = perf_counter()
            logits = run(batch)
            if self.engine.device.type == "cuda":
                torch.cuda.synchronize()
            if batch.is_decode:
                self.seconds.append(perf_counter() - begin)
            return logits

        self.engine._run_model = noted  # type: ignore[method-assign]

    def table(self) -> Iterator[str]:
        """A line for each run of equal steps."""
        for (phase, size, padded), steps in groupby(self.steps):
            shown = f"{size} -> {padded}" if padded > size else f"{size}"
            yield f"{phase:9}{shown:10}x {len([*steps])}"


@contextmanager
def forgetting(field: str) -> Iterator[None]:
    """Inside, one input of a replay is not copied to where it is read."""
    copy_from = GraphCaptureBuffer.copy_from

    def forgetful(self: GraphCaptureBuffer, batch: Batch) -> None:
        old = getattr(self, field).clone()
        copy_from(self, batch)
        getattr(self, field).copy_(old)

    GraphCaptureBuffer.copy_from = forgetful  # type: ignore[method-assign]
    try:
        yield
    finally:
        GraphCaptureBuffer.copy_from = copy_from  # type: ignore[method-assign]
