"""Attention block by block: the idea of FlashAttention, in plain torch.

Softmax over all keys can be put together from softmaxes over some of them (Milakov
and Gimelshein, arXiv:1805.02867; Dao et al., arXiv:2205.14135).
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch

from minisgl.attention.torch_backend import TorchBackend
from minisgl.models import ModelConfig

__all__ = ["BlockwiseBackend", "Partial", "attend_block", "merge"]

_LEAST = torch.finfo(torch.float32).min


class Partial(NamedTuple):
    """Attention to some of the keys.

    out: float32 [..., n, dim], the mean of their values by softmax; 0 where a
        query sees none of them.
    lse: float32 [..., n], the logarithm of the sum of exp(score); -inf there.
    """

    out: torch.Tensor
    lse: torch.Tensor


def attend_block(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor
) -> Partial:
    """q [..., n, dim] to one block, k and v [..., m, dim].

    seen: bool [..., n, m], broadcast. Scores are q k^T / sqrt(dim).
    """
    scores = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    # Where nothing is seen -inf - -inf would be no number.
    shares = (scores - lse.clamp(min=_LEAST).unsqueeze(-1)).exp()
    return Partial(shares @ v.float(), lse)


def merge(a: Partial, b: Partial) -> Partial:
    """Attention to the keys of both; no key is in a and in b."""
    lse = torch.logaddexp(a.lse, b.lse)
    whole = lse.clamp(min=_LEAST)
    shares = ((part.lse - whole).exp().unsqueeze(-1) for part in (a, b))
    mine, theirs = shares
    return Partial(mine * a.out + theirs * b.out, lse)


class BlockwiseBackend(TorchBackend):
    """Attends to `block` tokens at a time, so that scores stay small."""

    def __init__(self, config: ModelConfig, block: int) -> None:
        super().__init__(config)
        self.block = block

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        seen: torch.Tensor,
    ) -> torch.Tensor:
        b, kv_heads, _, dim = k.shape
        rows = q.view(b, -1, kv_heads, self._group_size, dim)
        rows = rows.permute(0, 2, 3, 1, 4).flatten(2, 3)
        pieces = (x.split(self.block, dim=-2) for x in (k, v))
        blocks = zip(*pieces, seen.split(self.block, dim=-1), strict=True)
        out = reduce(
            merge, (attend_block(rows, *block) for block in blocks)
        ).out
        out = out.to(q.dtype).view(b, kv_heads, self._group_size, -1, dim)
        return out.permute(0, 3, 1, 2, 4).reshape(q.shape)
