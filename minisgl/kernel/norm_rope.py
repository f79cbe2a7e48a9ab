"""Norm and rotation of q and k on a GPU, in one kernel."""

from __future__ import annotations

import torch

from minisgl.kernel.moe_impl import runs_triton


def can_fuse(qkv: torch.Tensor, head_dim: int, rotary_dim: int) -> bool:
    """Whether `norm_rope` takes this: on a GPU, whole heads of a power of 2."""
    if not runs_triton(qkv.device):
        return False
    return rotary_dim == head_dim and head_dim & (head_dim - 1) == 0


def norm_rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    heads: tuple[int, int],
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `RMSNorm` and then `RotaryEmbedding` make of each head of q and k.

    qkv: [T, (q heads + 2 k heads) * head_dim], rows may lie apart.
    positions: int [T]. cos_sin: float32 [positions, head_dim], both halves.
    weights: of the norms of q and k, [head_dim]. heads: of q, and of k.
    Returns new tensors [T, heads, head_dim] for q and k.
    """
    from minisgl.kernel.triton.norm_rope import norm_rope_kernel

    (q_heads, k_heads), dim = heads, cos_sin.shape[1]
    q = qkv.new_empty(len(qkv), q_heads, dim)
    k = qkv.new_empty(len(qkv), k_heads, dim)
    norm_rope_kernel[len(qkv), q_heads + k_heads](
        *(qkv, q, k, *weights, positions, cos_sin, qkv.stride(0), eps),
        Q_HEADS=q_heads,
        K_HEADS=k_heads,
        DIM=dim,
        HALF=dim // 2,
        num_warps=1,
    )
    return q, k
