"""Decoding in chunks: what a plan is for.

A GPU that gives each request to one of its blocks waits for the longest. Cut into
chunks it is work for many blocks, and their results are put together afterwards
(Flash-Decoding; the plan of FlashInfer, Ye et al., arXiv:2501.01005).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from minisgl.attention.torch_backend import TorchBackend, TorchMetadata, _gather
from minisgl.core import Batch
from minisgl.models import ModelConfig
from minisgl.utils import div_ceil


class Plan(NamedTuple):
    """C chunks: the pages of B requests, one request after the other.

    owner: int64 [C], whose pages they are, 0 to B - 1.
    first, last: int64 [C], from which page of that request to before which.
    """

    owner: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor


def chunk_pages(pages: Sequence[int], blocks: int) -> int:
    """The smallest size of a chunk, in pages, that makes few enough chunks.

    pages: of each request, 1 or more.
    blocks: as many chunks there may be; but every request has one at least.
    """
    most, least = max(pages), 1
    allowed = max(blocks, len(pages))
    while least < most:
        middle = (least + most) // 2
        if sum(div_ceil(count, middle) for count in pages) <= allowed:
            most = middle
        else:
            least = middle + 1
    return least


def make_plan(pages: Sequence[int], blocks: int) -> Plan:
    """Cut each request into chunks of `chunk_pages`; its last may be shorter."""
    size = chunk_pages(pages, blocks)
    chunks = [
        (owner, at, min(at + size, count))
        for owner, count in enumerate(pages)
        for at in range(0, count, size)
    ]
    return Plan(*torch.tensor(chunks).unbind(1))


def merge_chunks(
    out: torch.Tensor, lse: torch.Tensor, plan: Plan
) -> torch.Tensor:
    """Attention of each request to all of its chunks: float32 [B, heads, dim].

    out: float32 [C, heads, dim], to the keys of one chunk each.
    lse: float32 [C, heads], the logarithms of their sums of exp(score).
    """
    requests, heads = int(plan.owner[-1]) + 1, lse.shape[1]
    highest = lse.new_full((requests, heads), -torch.inf)
    highest.index_reduce_(0, plan.owner, lse, "amax")
    # No exponent is above 0, and one of each request is 0.
    shares = (lse - highest[plan.owner]).exp()
    total = torch.zeros_like(highest).index_add_(0, plan.owner, shares)
    mixed = out.new_zeros(requests, heads, out.shape[2])
    mixed.index_add_(0, plan.owner, shares.unsqueeze(2) * out)
    return mixed / total.unsqueeze(2)


@dataclass
class SplitMetadata(TorchMetadata):
    """A decode batch in chunks of at most m tokens.

    slots: int32 [C, m]; what is past the end of a chunk is its first slot.
    seen: bool [C, 1, 1, m], which of them are the chunk's.
    """

    plan: Plan
    slots: torch.Tensor
    seen: torch.Tensor


class SplitBackend(TorchBackend):
    """Decodes in at most `blocks` chunks, if there are not more requests."""

    def __init__(self, config: ModelConfig, blocks: int) -> None:
        super().__init__(config)
        self.blocks = blocks

    def prepare_metadata(self, batch: Batch) -> None:
        super().prepare_metadata(batch)
        if batch.is_prefill:
            return
        size, table = self._ctx.page_size, self._ctx.page_table
        pages = [div_ceil(req.device_len, size) for req in batch.reqs]
        plan = make_plan(pages, self.blocks)
        lengths = torch.tensor([req.device_len for req in batch.reqs])
        rows = torch.tensor([req.table_idx for req in batch.reqs])
        first = plan.first * size
        last = torch.minimum(plan.last * size, lengths[plan.owner])
        place = first.unsqueeze(1) + torch.arange(int((last - first).max()))
        seen = place < last.unsqueeze(1)
        place = torch.where(seen, place, first.unsqueeze(1))
        slots = table[rows[plan.owner].unsqueeze(1), place]
        done = batch.attn_metadata
        assert isinstance(done, TorchMetadata)
        batch.attn_metadata = SplitMetadata(
            done.last_indices, done.groups, plan, slots, seen[:, None, None]
        )

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer_id: int,
        batch: Batch,
    ) -> torch.Tensor:
        found = batch.attn_metadata
        if not isinstance(found, SplitMetadata):
            return super().forward(q, k, v, layer_id, batch)
        pool = self._ctx.kv_cache
        pool.store_kv(k.flatten(1), v.flatten(1), batch.out_loc, layer_id)
        keys = _gather(pool.k_cache(layer_id), found.slots).float()
        values = _gather(pool.v_cache(layer_id), found.slots).float()
        # [C, kv_heads, group, dim]: the queries that share a kv head.
        asked = q[found.plan.owner].unflatten(1, (-1, self._group_size)).float()
        scores = asked @ keys.transpose(2, 3) * q.shape[2] ** -0.5
        scores = scores.masked_fill(~found.seen, -torch.inf)
        out = (scores.softmax(-1) @ values).flatten(1, 2)
        lse = scores.logsumexp(-1).flatten(1, 2)
        return merge_chunks(out, lse, found.plan).to(q.dtype)
