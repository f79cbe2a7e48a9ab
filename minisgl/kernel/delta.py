"""The gated delta rule over a pool of states, in torch or in Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from minisgl.kernel.delta_rule import (
    conv_step,
    conv_tokens,
    delta_chunks,
    delta_step,
)
from minisgl.kernel.delta_triton import (
    delta_decode_triton,
    delta_prefill_triton,
)
from minisgl.kernel.fused import runs_triton

if TYPE_CHECKING:
    from minisgl.attention.segments import Wave

_EPS = 1e-6
"""Keeps a query or a key of zeros from being divided by zero."""


@dataclass
class DeltaWeights:
    """What a layer's heads are made with; see `LinearConfig` for the sizes.

    conv: [channels, conv_width], of the convolution.
    A_log, dt_bias: [v_heads]; a head fades by -exp(A_log) softplus(a + dt_bias).
    k_heads, k_dim: of queries, and of keys.
    """

    conv: torch.Tensor
    A_log: torch.Tensor
    dt_bias: torch.Tensor
    k_heads: int
    k_dim: int


def delta_decode(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    weights: DeltaWeights,
    conv: torch.Tensor,
    recurrent: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    """One token of every row; both states change in place.

    qkv: [B, channels], before the convolution. gates: [B, 2 v_heads], [b | a].
    conv: [slots, channels, W - 1]; recurrent: float32 [slots, v_heads, k_dim,
    v_dim]. rows: int64 [B], slots; only the dummy's may be there twice.
    Returns [B, v_heads, v_dim].
    """
    where = conv, recurrent, rows
    if runs_triton(qkv.device):
        return delta_decode_triton(qkv, gates, weights, *where)
    return delta_decode_torch(qkv, gates, weights, *where)


def delta_decode_torch(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    weights: DeltaWeights,
    conv: torch.Tensor,
    recurrent: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    """The reference of `delta_decode`."""
    mixed, past = conv_step(qkv, weights.conv, conv[rows])
    conv[rows] = past
    heads = (*_heads(mixed, weights), *_fade(gates, weights))
    out, state = delta_step(*heads, recurrent[rows])
    recurrent[rows] = state
    return out.to(qkv.dtype)


def delta_prefill(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    weights: DeltaWeights,
    conv: torch.Tensor,
    recurrent: torch.Tensor,
    waves: list[Wave],
) -> torch.Tensor:
    """All tokens of the segments in `waves`; shapes as in `delta_decode`."""
    where = conv, recurrent, waves
    if runs_triton(qkv.device):
        return delta_prefill_triton(qkv, gates, weights, *where)
    return delta_prefill_torch(qkv, gates, weights, *where)


def delta_prefill_torch(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    weights: DeltaWeights,
    conv: torch.Tensor,
    recurrent: torch.Tensor,
    waves: list[Wave],
) -> torch.Tensor:
    """The reference of `delta_prefill`: one segment after the other."""
    v_dim = recurrent.shape[-1]
    out = qkv.new_empty(len(qkv), len(weights.A_log), v_dim)
    for start, stop, source, row, save in (
        segment for wave in waves for segment in wave.segments
    ):
        mine = slice(start, stop)
        mixed, past = conv_tokens(qkv[mine], weights.conv, conv[source])
        heads = (*_heads(mixed, weights), *_fade(gates[mine], weights))
        found, state = delta_chunks(*heads, recurrent[source])
        out[mine] = found.to(out.dtype)
        for slot in (row, save) if save >= 0 else (row,):
            conv[slot], recurrent[slot] = past, state
    return out


def _heads(
    mixed: torch.Tensor, weights: DeltaWeights
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of every value head, float32 [T, heads, dim].

    Queries and keys have length 1, queries then 1 / sqrt(k_dim).
    """
    keys, v_heads = weights.k_heads * weights.k_dim, len(weights.A_log)
    wide = mixed.float()
    q, k = wide[:, : 2 * keys].view(len(wide), 2, -1, weights.k_dim).unbind(1)
    v = wide[:, 2 * keys :].view(len(wide), v_heads, -1)
    q, k = _unit(q) * weights.k_dim**-0.5, _unit(k)
    each = v_heads // weights.k_heads
    return q.repeat_interleave(each, 1), k.repeat_interleave(each, 1), v


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)


def _fade(
    gates: torch.Tensor, weights: DeltaWeights
) -> tuple[torch.Tensor, torch.Tensor]:
    """g and beta of every token and head, float32 [T, v_heads]."""
    b, a = gates.chunk(2, -1)
    steps = F.softplus(a.float() + weights.dt_bias)
    return -weights.A_log.float().exp() * steps, b.sigmoid().float()
