"""Requests and batches made by hand: what a scheduler will do, before there is one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Literal

import torch

from minisgl.core import Batch, Context, Req, SamplingParams

Phase = Literal["prefill", "decode"]


def make_req(
    ids: Sequence[int],
    row: int,
    max_tokens: int,
    params: SamplingParams | None = None,
) -> Req:
    """A request that has not run; its uid is its row.

    From ch08 on a request holds a handle of the prefix cache. It is None here: what
    is made by hand uses no such cache.
    """
    later: dict[str, Any] = {}
    if "cache_handle" in {field.name for field in fields(Req)}:
        later["cache_handle"] = None
    return Req(
        input_ids=torch.tensor(ids, dtype=torch.int32),
        table_idx=row,
        cached_len=0,
        output_len=max_tokens,
        uid=row,
        sampling_params=params or SamplingParams(max_tokens=max_tokens),
        **later,
    )


def make_ctx(page_size: int = 1) -> Context:
    """A context without tensors; from ch04 on it has a page size."""
    sized = "page_size" in {field.name for field in fields(Context)}
    return Context(page_size) if sized else Context()


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


class _EveryRow:
    """Attention metadata of a batch whose requests have one token each."""

    every_token = False  # the head asks from the chapter of drafts on

    def get_last_indices(self, bs: int) -> torch.Tensor:
        return torch.arange(bs)


@contextmanager
def one_token_each(count: int) -> Iterator[Batch]:
    """Inside, a step of `count` requests of one token is running.

    From ch05 on the head computes only the last token of each request of the running
    batch. In this one these are all tokens, so every version of the head agrees.
    """
    reqs = [make_req([0], row, max_tokens=1) for row in range(count)]
    batch = Batch(reqs, "decode")
    batch.attn_metadata = _EveryRow()
    with make_ctx().forward_batch(batch):
        yield batch
