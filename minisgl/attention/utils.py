"""Tensors of a fixed place, from which recorded attention reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch


@dataclass
class BaseCaptureData:
    """Metadata of decode batches up to a size, at addresses that stay.

    seq_lens: int32 [max_bs], tokens of each request.
    positions: int32 [max_bs], where each one's new token stands.
    cu_seqlens_k, cu_seqlens_q: int32 [max_bs + 1], sums of all tokens, and of
        new ones: one a request, so that the latter never change.
    page_table: int32 [max_bs, max_seq_len], one entry a token or a page.
    """

    seq_lens: torch.Tensor
    positions: torch.Tensor
    cu_seqlens_k: torch.Tensor
    cu_seqlens_q: torch.Tensor
    page_table: torch.Tensor

    @classmethod
    def create(
        cls, max_bs: int, max_seq_len: int, device: torch.device, **kwargs: Any
    ) -> Self:
        """For requests of one token each, which every row can be.

        max_seq_len: the width of the table.
        kwargs: further fields of a subclass.
        """
        kinds: dict[str, Any] = {"dtype": torch.int32, "device": device}
        return cls(
            seq_lens=torch.ones(max_bs, **kinds),
            positions=torch.zeros(max_bs, **kinds),
            cu_seqlens_k=torch.arange(max_bs + 1, **kinds),
            cu_seqlens_q=torch.arange(max_bs + 1, **kinds),
            page_table=torch.zeros(max_bs, max_seq_len, **kinds),
            **kwargs,
        )
