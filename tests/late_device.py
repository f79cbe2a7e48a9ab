"""A CPU that is as late as the slowest GPU could be.

On a CPU work is done the moment it is asked for, so the faults of overlap cannot show.
`make_late` lets a scheduler's launched batches lie: whatever `_forward` asks of the
device is put into a queue, in order, and runs only once the host waits for an event.
What the scheduler itself writes (page table, new prompts in the token pool) happens
at once, as on a GPU, where nothing makes it wait for the engine's stream.
"""

from collections.abc import Callable
from typing import Any

import torch

from minisgl.core import Batch
from minisgl.engine import BatchSamplingArgs, ForwardOutput
from minisgl.scheduler import Scheduler
from minisgl.utils.device import NullEvent, NullStream


class LateStream(NullStream):
    """Work in order of launch, none of it done before somebody must have it."""

    def __init__(self) -> None:
        self.todo: list[Callable[[], object]] = []
        self.running = False

    def run_one(self) -> None:
        self.running = True
        try:
            self.todo.pop(0)()
        finally:
            self.running = False

    def synchronize(self) -> None:
        while self.todo:
            self.run_one()


class LateEvent(NullEvent):
    """Happens when the stream has come to where it was recorded last."""

    def __init__(self, stream: LateStream) -> None:
        self.stream, self.recorded, self.passed = stream, 0, 0

    def record(self) -> None:
        self.recorded += 1
        self.stream.todo.append(self._pass)

    def _pass(self) -> None:
        self.passed += 1

    def synchronize(self) -> None:
        while self.passed < self.recorded:
            self.stream.run_one()


class LatePool:
    """A token pool: rows at once (the scheduler), index pairs late (a batch)."""

    def __init__(self, pool: torch.Tensor, stream: LateStream) -> None:
        self.pool, self.stream = pool, stream

    def __getitem__(self, index: Any) -> torch.Tensor:
        found = self.pool[index]
        # What a batch asks for while it runs is there.
        if not isinstance(index, tuple) or self.stream.running:
            return found
        found.fill_(0)  # it is a copy, and holds nothing yet
        self.stream.todo.append(lambda: found.copy_(self.pool[index]))
        return found

    @property
    def device(self) -> torch.device:
        return self.pool.device

    def __setitem__(self, index: Any, value: torch.Tensor) -> None:
        self.stream.todo.append(lambda: self.pool.__setitem__(index, value))


def _run_model(engine: Any, batch: Batch) -> torch.Tensor:
    """From ch18 on a decode batch may be a replay."""
    runner = getattr(engine, "graph_runner", None)
    if runner is not None and runner.can_use_cuda_graph(batch):
        logits: torch.Tensor = runner.replay(batch)
        return logits
    with engine.ctx.forward_batch(batch):
        found: torch.Tensor = engine.model.forward()
    return found


def make_late(scheduler: Scheduler) -> LateStream:
    """From now on this scheduler's batches run when their tokens are waited for."""
    stream, engine = LateStream(), scheduler.engine

    def forward_batch(batch: Batch, args: BatchSamplingArgs) -> ForwardOutput:
        on_device = torch.zeros(len(batch.reqs), dtype=torch.int32)
        on_host = torch.full_like(on_device, 1 << 30)

        def work() -> None:
            logits = _run_model(engine, batch)
            on_host.copy_(engine.sampler.sample(logits, args))
            on_device.copy_(on_host.clamp(min=0))

        for req in batch.reqs:
            req.complete_one()
        stream.todo.append(work)
        event = LateEvent(stream)
        event.record()
        return ForwardOutput(on_device, on_host, event)

    engine.stream = stream
    engine.forward_batch = forward_batch  # type: ignore[method-assign]
    pool = LatePool(scheduler.table_manager.token_pool, stream)
    scheduler.table_manager.token_pool = pool  # type: ignore[assignment]
    return stream
