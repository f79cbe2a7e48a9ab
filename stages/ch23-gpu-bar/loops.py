"""A decode batch made by hand, and its inputs found request by request."""

from __future__ import annotations

import torch

from minisgl.core import Batch, Req, SamplingParams
from minisgl.kvcache.naive_cache import NaiveCacheHandle

ROWS, LENGTH = 256, 1024
TABLE = torch.arange(ROWS * LENGTH, dtype=torch.int32).flip(0)
TABLE = TABLE.view(ROWS, LENGTH)
"""A page table in which no slot is where one would guess."""


def decode_batch() -> Batch:
    """A request a row, with one token to compute, each of another length."""
    reqs = []
    for row in range(ROWS):
        ids = torch.zeros(500 + row, dtype=torch.int32)
        handle, params = NaiveCacheHandle(), SamplingParams(max_tokens=9)
        reqs.append(Req(ids, row, len(ids) - 1, 9, row, params, handle))
    return Batch(reqs, "decode")


def by_loop(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions and slots, int64 and int32 [T], with a few calls a request."""
    positions, slots = [], []
    for req in batch.padded_reqs:
        span = slice(req.cached_len, req.device_len)
        positions.append(torch.arange(span.start, span.stop))
        slots.append(TABLE[req.table_idx, span])
    return torch.cat(positions), torch.cat(slots)
