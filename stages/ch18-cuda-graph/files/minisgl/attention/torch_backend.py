"""Paged attention in plain torch: gather the pages, then attend."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F

from minisgl.attention.base import BaseAttnBackend, BaseAttnMetadata
from minisgl.attention.utils import BaseCaptureData
from minisgl.core import Batch, Req, get_global_ctx
from minisgl.models import ModelConfig


@dataclass
class Group:
    """Neighbours in the batch of one `_shape`: b requests, n new tokens each.

    rows: their tokens in the flat batch.
    slots: int32 [b, m], KV slots of each request. Rows are padded to the
        longest, m, with the first slot of the same request.
    seen: bool [b, 1, G * n, m], which of them each new token may look at, once
        for each of the G query heads of a kv head.
    """

    rows: slice
    slots: torch.Tensor
    seen: torch.Tensor


@dataclass
class TorchMetadata(BaseAttnMetadata):
    last_indices: torch.Tensor
    groups: list[Group]

    def get_last_indices(self, bs: int) -> torch.Tensor:
        return self.last_indices[:bs]


class TorchBackend(BaseAttnBackend):
    """The reference: runs wherever torch does, prefill and decode alike."""

    def __init__(self, config: ModelConfig) -> None:
        self._group_size = config.num_qo_heads // config.num_kv_heads
        # Its engine's: metadata is made before that context is current again.
        self._ctx = get_global_ctx()

    def prepare_metadata(self, batch: Batch) -> None:
        groups, start, table = [], 0, self._ctx.page_table
        for (length, _), reqs in groupby(batch.padded_reqs, _shape):
            group = _make_group(list(reqs), length, start, table)
            # One copy of the mask for every query head of a kv head.
            group.seen = group.seen.repeat(1, 1, self._group_size, 1)
            groups.append(group)
            start = group.rows.stop
        lengths = torch.tensor([req.extend_len for req in batch.padded_reqs])
        last = (lengths.cumsum(0) - 1).to(table.device)
        batch.attn_metadata = TorchMetadata(last, groups)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer_id: int,
        batch: Batch,
    ) -> torch.Tensor:
        pool = self._ctx.kv_cache
        pool.store_kv(k.flatten(1), v.flatten(1), batch.out_loc, layer_id)
        metadata = batch.attn_metadata
        assert isinstance(metadata, TorchMetadata)
        keys, values = pool.k_cache(layer_id), pool.v_cache(layer_id)
        out = torch.empty_like(q)
        for group in metadata.groups:
            found_k = _gather(keys, group.slots)
            found_v = _gather(values, group.slots)
            out[group.rows] = self._attend(
                q[group.rows], found_k, found_v, group.seen
            )
        return out

    @property
    def pads_to_context(self) -> bool:
        return True

    def init_capture_graph(self, max_seq_len: int, bs_list: list[int]) -> None:
        max_bs, device = max(bs_list), self._ctx.page_table.device
        self._capture = BaseCaptureData.create(max_bs, max_seq_len, device)
        shape = (max_bs, 1, self._group_size, max_seq_len)
        self._seen = torch.zeros(shape, dtype=torch.bool, device=device)
        # A row that sees nothing would be a softmax over nothing.
        self._seen[..., 0] = True

    def prepare_for_capture(self, batch: Batch) -> None:
        size = batch.padded_size
        slots = self._capture.page_table[:size]
        group = Group(slice(0, size), slots, self._seen[:size])
        last = self._capture.cu_seqlens_q[1 : size + 1] - 1
        batch.attn_metadata = TorchMetadata(last, [group])

    def prepare_for_replay(self, batch: Batch) -> None:
        metadata = batch.attn_metadata
        assert isinstance(metadata, TorchMetadata)
        for group in metadata.groups:
            longest = group.slots.shape[1]
            slots = self._capture.page_table[group.rows]
            slots[:, :longest] = group.slots
            # Padding is the request's own, as in `_make_group`.
            slots[:, longest:] = group.slots[:, :1]
            self._seen[group.rows] = False
            self._seen[group.rows, ..., :longest] = group.seen

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:
        """q [b * n, heads, dim]; k, v [b, kv_heads, m, dim] -> shaped as q.

        seen: bool [b, 1, heads / kv_heads * n, m].
        """
        # The queries that share a kv head become its rows: no copies of k.
        b, kv_heads, _, dim = k.shape
        rows = q.view(b, -1, kv_heads, self._group_size, dim)
        rows = rows.permute(0, 2, 3, 1, 4).flatten(2, 3)
        out = F.scaled_dot_product_attention(rows, k, v, seen)
        out = out.view(b, kv_heads, self._group_size, -1, dim)
        return out.permute(0, 3, 1, 2, 4).reshape(q.shape)


def _shape(req: Req) -> tuple[int, int]:
    """Requests of one group compute equally much and are about as long.

    Below 512 tokens all are alike, then up to a factor of 4: so the longest
    makes the others' padding no dearer than that.
    """
    return req.extend_len, max(req.device_len, 128).bit_length() // 2


def _make_group(
    reqs: list[Req], n: int, start: int, table: torch.Tensor
) -> Group:
    """Describe `reqs`, whose n new tokens each begin at row `start`."""
    device = table.device
    rows = torch.tensor([req.table_idx for req in reqs]).to(device)
    lengths = torch.tensor([req.device_len for req in reqs]).to(device)
    longest = max(req.device_len for req in reqs)
    place = torch.arange(longest, device=device)
    inside = place < lengths.unsqueeze(1)
    # Past its end a row holds what an earlier request left there. Whatever
    # stands for it enters a product, so that it must be the request's own:
    # the NaN of another, times zero, is NaN.
    slots = torch.where(inside, table[rows, :longest], table[rows, :1])
    own = lengths.unsqueeze(1) - n + torch.arange(n, device=device)
    seen = place <= own.unsqueeze(2)
    return Group(slice(start, start + n * len(reqs)), slots, seen.unsqueeze(1))


def _gather(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[pages, page_size, kv_heads, dim] by [b, m] -> [b, kv_heads, m, dim]."""
    flat = cache.flatten(0, 1).flatten(1)
    # index_select on rows is several times quicker than indexing on a CPU.
    found = flat.index_select(0, slots.flatten())
    return found.view(*slots.shape, *cache.shape[2:]).transpose(1, 2)
