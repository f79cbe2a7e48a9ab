"""Copies of pages between the device and the host, beside the computation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from minisgl.kvcache.base import BaseKVCachePool
from minisgl.kvcache.host_pool import words
from minisgl.utils.device import (
    Event,
    keep_for,
    new_event,
    new_stream,
    use_stream,
    wait_event,
    wait_for_current,
)

_STAGE = 32 << 20
"""Bytes on the device through which a layer's pages pass at once."""


class Run(NamedTuple):
    """Host pages that follow one another: place in the chunk, page, pages."""

    at: int
    page: int
    size: int


class Chunk(NamedTuple):
    """Pages of the device, int64 [n], and where the same n are on the host."""

    pages: torch.Tensor
    runs: list[Run]


def find_runs(pages: torch.Tensor) -> list[Run]:
    """Host pages, int64 [n] on the CPU, as few runs as there are."""
    numbers = pages.numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
    sizes = np.diff(starts, append=len(numbers))
    firsts = numbers[starts]
    found = zip(starts.tolist(), firsts.tolist(), sizes.tolist(), strict=True)
    return [Run(*run) for run in found]


class Transfers:
    """Writes pages to the host and reads them back, on a stream of its own.

    All copies go through this one stream, in the order in which they are asked
    for. So what is read was written, and a page of the host that is given to
    another prefix is overwritten only after the last read of the old one.

    Pages of the device lie anywhere, a copy engine wants long pieces. So a
    layer's pages are gathered on the device, and travel as one copy for each run
    of host pages.

    host: as `host_buffer` makes it.
    """

    def __init__(self, pool: BaseKVCachePool, host: torch.Tensor) -> None:
        self._caches = [
            (words(pool.k_cache(i)), words(pool.v_cache(i)))
            for i in range(pool.num_layers)
        ]
        self._host = host
        self._device = pool.device
        self._stream = new_stream(pool.device)
        self._wanted: list[Chunk] = []
        self._arriving: dict[int, Event] = {}

    def reset(self) -> None:
        """Forget what is wanted, and wait for all that is under way."""
        self._stream.synchronize()
        self._wanted, self._arriving = [], {}

    def write(self, pages: torch.Tensor, host_pages: torch.Tensor) -> Event:
        """Copy pages, int64 [n] each, to the host; the event is their arrival.

        Their content is there: every batch that wrote to them has come back.
        Nobody may write to them before the event.
        """
        chunks = self._chunks(pages, host_pages)
        wait_for_current(self._stream)
        with use_stream(self._stream):
            for layer in range(len(self._caches)):
                self._write_layer(layer, chunks)
            event = new_event(self._device)
            event.record()
        return event

    def read(self, pages: torch.Tensor, host_pages: torch.Tensor) -> None:
        """Have the next forward copy pages, int64 [n] each, from the host.

        Until a batch that needs them has come back nobody may write to either.
        """
        self._wanted += self._chunks(pages, host_pages)

    def arrive(self, layer: int) -> None:
        """Called by a forward before it reads a layer: let its pages be there.

        The first call starts the copies of all layers. They come after all that
        was launched before, so that no earlier batch still reads what the pages
        held. From then on the forward is ahead of the copies or behind them, and
        waits only for the layer that it is about to read.
        """
        if self._wanted:
            self._start()
        event = self._arriving.pop(layer, None)
        if event is not None:
            wait_event(event)

    def _start(self) -> None:
        chunks, self._wanted = self._wanted, []
        wait_for_current(self._stream)
        with use_stream(self._stream):
            for layer in range(len(self._caches)):
                self._read_layer(layer, chunks)
                event = new_event(self._device)
                event.record()
                self._arriving[layer] = event

    def _chunks(
        self, pages: torch.Tensor, host_pages: torch.Tensor
    ) -> list[Chunk]:
        keep_for(self._stream, pages)
        size = max(1, _STAGE // self._host[0, 0, 0].nbytes)
        parts = zip(pages.split(size), host_pages.split(size), strict=True)
        return [Chunk(part, find_runs(on_host)) for part, on_host in parts]

    def _write_layer(self, layer: int, chunks: list[Chunk]) -> None:
        for cache, host in zip(
            self._caches[layer], self._host[layer], strict=True
        ):
            for pages, runs in chunks:
                stage = cache.index_select(0, pages)
                for at, page, size in runs:
                    host[page : page + size].copy_(
                        stage[at : at + size], non_blocking=True
                    )

    def _read_layer(self, layer: int, chunks: list[Chunk]) -> None:
        for cache, host in zip(
            self._caches[layer], self._host[layer], strict=True
        ):
            for pages, runs in chunks:
                stage = cache.new_empty(len(pages), cache.shape[1])
                for at, page, size in runs:
                    stage[at : at + size].copy_(
                        host[page : page + size], non_blocking=True
                    )
                cache.index_copy_(0, pages, stage)
