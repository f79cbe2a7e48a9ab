"""The interface behind which attention kernels are swapped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from minisgl.core import Batch


@dataclass
class BaseAttnMetadata(ABC):
    """What a backend works out once a step and uses in every layer.

    every_token: whether logits are wanted after every token of the batch, not
        only after each request's last; set by whoever wants them.
    """

    every_token: bool = field(default=False, init=False)

    @abstractmethod
    def get_last_indices(self, bs: int) -> torch.Tensor:
        """int [bs]: where the last token of each request is in the batch."""


class BaseAttnBackend(ABC):
    """Causal attention of a flat batch over the paged KV pool."""

    @abstractmethod
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer_id: int,
        batch: Batch,
    ) -> torch.Tensor:
        """Store k and v, then attend: q [T, heads, dim] -> the same shape.

        k, v: [T, kv_heads, dim], keys and values of the same tokens.
        """

    @abstractmethod
    def prepare_metadata(self, batch: Batch) -> None:
        """Set `batch.attn_metadata`; the page table is already filled."""

    @property
    def pads_to_context(self) -> bool:
        """Whether recorded steps attend over the whole context, as long as it
        may be: right, and mostly not worth it."""
        return False

    @abstractmethod
    def init_capture_graph(self, max_seq_len: int, bs_list: list[int]) -> None:
        """Make what recorded decode steps read: up to that many tokens a
        request, batches of these sizes."""

    @abstractmethod
    def prepare_for_capture(self, batch: Batch) -> None:
        """Set metadata of a decode batch that lies where it will always lie."""

    @abstractmethod
    def prepare_for_replay(self, batch: Batch) -> None:
        """Put the metadata of a padded batch there."""


class HybridBackend(BaseAttnBackend):
    """One backend for prefill batches, another one for decode batches."""

    def __init__(
        self, prefill_backend: BaseAttnBackend, decode_backend: BaseAttnBackend
    ) -> None:
        self.prefill_backend = prefill_backend
        self.decode_backend = decode_backend

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer_id: int,
        batch: Batch,
    ) -> torch.Tensor:
        return self._of(batch).forward(q, k, v, layer_id, batch)

    def prepare_metadata(self, batch: Batch) -> None:
        self._of(batch).prepare_metadata(batch)

    @property
    def pads_to_context(self) -> bool:
        return self.decode_backend.pads_to_context

    def init_capture_graph(self, max_seq_len: int, bs_list: list[int]) -> None:
        self.decode_backend.init_capture_graph(max_seq_len, bs_list)

    def prepare_for_capture(self, batch: Batch) -> None:
        self.decode_backend.prepare_for_capture(batch)

    def prepare_for_replay(self, batch: Batch) -> None:
        self.decode_backend.prepare_for_replay(batch)

    def _of(self, batch: Batch) -> BaseAttnBackend:
        return self.prefill_backend if batch.is_prefill else self.decode_backend
