"""Batches made by hand: what a scheduler will do, for chapters before it.

`Step` is the bookkeeping of ch04 to ch06: a row and pages for every request,
the tensors of a batch, and the choice of the next token.
"""

from collections.abc import Sequence
from typing import Literal

import torch

from minisgl.core import Batch, Context, Req, SamplingParams

Phase = Literal["prefill", "decode"]


def make_req(
    ids: Sequence[int],
    row: int,
    max_tokens: int,
    params: SamplingParams | None = None,
) -> Req:
    """A request that has not run; its uid is its row."""
    return Req(
        input_ids=torch.tensor(ids, dtype=torch.int32),
        table_idx=row,
        cached_len=0,
        output_len=max_tokens,
        uid=row,
        sampling_params=params or SamplingParams(max_tokens=max_tokens),
    )


def make_batch(reqs: list[Req], phase: Phase, ctx: Context | None) -> Batch:
    """Fill in the tensors; with a context the KV slots too (pages are there)."""
    batch = Batch(reqs, phase)
    device = ctx.page_table.device if ctx is not None else torch.device("cpu")
    spans = [(r, r.cached_len, r.device_len) for r in reqs]
    flat = [r.input_ids[a:b] for r, a, b in spans]
    places = [torch.arange(a, b, dtype=torch.int32) for _, a, b in spans]
    batch.input_ids = torch.cat(flat).to(device)
    batch.positions = torch.cat(places).to(device)
    if ctx is not None:
        slots = [ctx.page_table[r.table_idx, a:b] for r, a, b in spans]
        batch.out_loc = torch.cat(slots)
    return batch


def finish_step(batch: Batch, next_tokens: Sequence[int]) -> None:
    """Move the counters on and append each request's token."""
    for req, token in zip(batch.reqs, next_tokens, strict=True):
        req.complete_one()
        req.append_host(torch.tensor([token], dtype=torch.int32))
