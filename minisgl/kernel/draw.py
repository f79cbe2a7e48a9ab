"""Tokens from logits on a GPU, where no row has limits."""

from __future__ import annotations

import torch

from minisgl.kernel.moe_impl import runs_triton

_BLOCK = 4096
"""Tokens whose weights one program adds up."""


def can_draw(logits: torch.Tensor) -> bool:
    """Whether `draw_rows` takes logits like these: on a GPU, with Triton."""
    return runs_triton(logits.device)


def draw_rows(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    uniforms: torch.Tensor,
    failed: int,
) -> torch.Tensor:
    """Draw one token a row; the best one where the temperature is 0.

    As `sample_impl` without limits, with the tokens in the order of their ids:
    a row's number in [0, 1) alone decides. Two kernels, which read the logits
    once and one block of each row again; nothing as large is written.

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
        num_warps=8,
    )
    pick_kernel[rows,](
        *(logits, temperatures, uniforms, best, place, sums, out, *shape),
        failed,
        BLOCK=_BLOCK,
        BLOCKS=triton.next_power_of_2(blocks),
        num_warps=8,
    )
    return out
