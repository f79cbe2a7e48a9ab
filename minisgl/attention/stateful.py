"""The attention backend of a hybrid model: one for each kind of layer."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch

from minisgl.attention.base import BaseAttnBackend, BaseAttnMetadata
from minisgl.attention.linear import LinearAttnBackend, LinearMetadata
from minisgl.core import Batch, get_global_ctx
from minisgl.kvcache.state_pool import StatePool


@dataclass
class HybridMetadata(BaseAttnMetadata):
    """That of the layers with keys and values, and that of those without."""

    attention: BaseAttnMetadata
    linear: LinearMetadata

    def get_last_indices(self, bs: int) -> torch.Tensor:
        return self.attention.get_last_indices(bs)


class StatefulBackend(BaseAttnBackend):
    """Passes on what it is asked for to one backend or to both.

    attention: over the KV pool; it sees a batch that has its metadata only.
    linear: over the pool of states.
    """

    def __init__(self, attention: BaseAttnBackend, states: StatePool) -> None:
        self.attention = attention
        self.linear = LinearAttnBackend(states)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer_id: int,
        batch: Batch,
    ) -> torch.Tensor:
        return self.attention.forward(q, k, v, layer_id, _for_attention(batch))

    def prepare_metadata(self, batch: Batch) -> None:
        self.attention.prepare_metadata(batch)
        linear = self.linear.prepare(batch)
        batch.attn_metadata = HybridMetadata(batch.attn_metadata, linear)

    @property
    def pads_to_context(self) -> bool:
        return self.attention.pads_to_context

    def init_capture_graph(self, max_seq_len: int, bs_list: list[int]) -> None:
        self.attention.init_capture_graph(max_seq_len, bs_list)
        self.linear.init_capture(max(bs_list))

    def prepare_for_capture(self, batch: Batch) -> None:
        self.attention.prepare_for_capture(batch)
        linear = self.linear.prepare_for_capture(batch)
        batch.attn_metadata = HybridMetadata(batch.attn_metadata, linear)

    def prepare_for_replay(self, batch: Batch) -> None:
        self.attention.prepare_for_replay(_for_attention(batch))
        self.linear.prepare_for_replay(linear_metadata(batch))


def linear_metadata(batch: Batch) -> LinearMetadata:
    """What the linear layers need to know of a batch."""
    assert isinstance(batch.attn_metadata, HybridMetadata)
    return batch.attn_metadata.linear


def _for_attention(batch: Batch) -> Batch:
    """The batch as the attention backend has prepared it."""
    assert isinstance(batch.attn_metadata, HybridMetadata)
    plain = copy(batch)
    plain.attn_metadata = batch.attn_metadata.attention
    return plain


def current_states() -> StatePool | None:
    """The pool of the current context, if its model needs one."""
    backend = getattr(get_global_ctx(), "attn_backend", None)
    if isinstance(backend, StatefulBackend):
        return backend.linear.states
    return None
