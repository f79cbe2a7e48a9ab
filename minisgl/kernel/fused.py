"""Several steps in one kernel each, on a GPU: what torch needs many for."""

from __future__ import annotations

import torch

from minisgl.kernel.moe_impl import is_interpreted
from minisgl.utils.libraries import has_library

_BLOCK = 4096
"""Tokens whose weights one program adds up."""


def runs_triton(device: torch.device) -> bool:
    """Whether the kernels of this file take tensors that are on `device`."""
    takes = device.type == "cuda" or is_interpreted()
    return takes and has_library("triton")


def draw_rows(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    uniforms: torch.Tensor,
    failed: int,
) -> torch.Tensor:
    """Draw one token a row; the best one where the temperature is 0.

    As `sample_impl` without limits, with the tokens in the order of their ids:
    a row's number in [0, 1) alone decides. The logits are read once, and one
    block of each row again; nothing as large is written.

    logits: float [B, vocab], the last dimension contiguous.
    temperatures, uniforms: float32 [B].
    failed: stands in the result where logits were not numbers.
    Returns int32 [B].
    """
    import triton

    from minisgl.kernel.triton.draw import pick_kernel, sum_blocks_kernel

    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, _BLOCK)
    device = logits.device
    best, sums = torch.empty(2, rows, blocks, device=device)
    place, out = (
        torch.empty(size, dtype=torch.int32, device=device)
        for size in (rows * blocks, rows)
    )
    shape = (vocab, logits.stride(0), blocks)
    sum_blocks_kernel[rows, blocks](
        *(logits, temperatures, best, place, sums, *shape),
        BLOCK=_BLOCK,
        num_warps=4,
    )
    pick_kernel[rows,](
        *(logits, temperatures, uniforms, best, place, sums, out, *shape),
        failed,
        BLOCK=_BLOCK,
        BLOCKS=triton.next_power_of_2(blocks),
        num_warps=8,
    )
    return out


def norm_rope(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor],
    heads: tuple[int, int],
    eps: float,
    store: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `RMSNorm` and then `RotaryEmbedding` make of each head of q and k.

    qkv: [T, (q heads + 2 k heads) * head_dim], rows may lie apart; head_dim is
        a power of 2, and all of it is rotated.
    positions: int [T]. cos_sin: float32 [positions, head_dim], both halves.
    weights: of the norms of q and k, [head_dim]. heads: of q, and of k.
    store: keys and values [..., k heads, head_dim], contiguous, and int [T],
        which row of them each token's k and v go to.
    Returns new tensors [T, heads, head_dim] for q and k; the latter is empty
    if it is stored.
    """
    import triton

    from minisgl.kernel.triton.norm_rope import norm_rope_kernel

    (q_heads, k_heads), dim = heads, cos_sin.shape[1]
    q = qkv.new_empty(len(qkv), q_heads, dim)
    k = qkv.new_empty(0 if store else len(qkv), k_heads, dim)
    keys, values, rows = store or (k, k, positions)
    assert keys.is_contiguous() and values.is_contiguous()
    assert rows.is_contiguous()
    norm_rope_kernel[len(qkv),](
        *(qkv, q, keys, values, rows, *weights, positions, cos_sin),
        *(qkv.stride(0), eps),
        Q_HEADS=q_heads,
        K_HEADS=k_heads,
        HEADS=triton.next_power_of_2(q_heads + k_heads),
        V_HEADS=triton.next_power_of_2(k_heads),
        DIM=dim,
        HALF=dim // 2,
        STORE=store is not None,
        num_warps=4,
    )
    return q, k
