"""Device work that is recorded once and then done again by a single launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from minisgl.utils.device import NullStream, Stream


class RecordedRun(Protocol):
    """A sequence of kernels with the addresses that they read and write.

    Nothing else is kept. Numbers that the host has passed are constants in it,
    and what another run is to read has to lie where the first one read.
    """

    def capture(self, run: Callable[[], object]) -> None:
        """Record what `run` asks of the device; it is called once or twice."""

    def replay(self) -> None:
        """Do it again, on the tensors of the capture."""


class CudaGraph:
    """A CUDA graph.

    pool: memory that graphs share if no two of them run at the same time.
    """

    def __init__(self, stream: torch.cuda.Stream, pool: Any) -> None:
        self._stream, self._pool = stream, pool
        self._graph = torch.cuda.CUDAGraph()
        self._run: Callable[[], object] | None = None

    def capture(self, run: Callable[[], object]) -> None:
        # The first call may allocate, load kernels and wait, which a recording
        # cannot. What it reads has been made on the current stream.
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        with torch.cuda.graph(
            self._graph,
            pool=self._pool,
            stream=self._stream,
            # Threads that watch over NCCL may ask the device things meanwhile.
            capture_error_mode="thread_local",
        ):
            run()
        # Tensors that only the function holds must outlive the recording.
        self._run = run

    def replay(self) -> None:
        self._graph.replay()


class EmulatedGraph:
    """Stands for a CUDA graph on a CPU: keeps the function and calls it again.

    It is called without arguments, so all that changes between two calls is
    what was written to the tensors of the capture. A copy that was forgotten
    gives the same wrong tokens here as on a GPU.
    """

    def __init__(self) -> None:
        self._run: Callable[[], object] | None = None

    def capture(self, run: Callable[[], object]) -> None:
        self._run = run
        run()

    def replay(self) -> None:
        assert self._run is not None, "nothing was captured"
        self._run()


def new_recordings(stream: Stream) -> Callable[[], RecordedRun]:
    """What makes recordings for a stream; all of one call share their memory."""
    if isinstance(stream, NullStream):
        return EmulatedGraph
    pool = torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(stream, pool)
