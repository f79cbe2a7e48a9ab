"""The Triton kernels of a layer of experts, launched on torch tensors."""

from __future__ import annotations

import os
from typing import Any

import torch


def is_interpreted() -> bool:
    """Whether Triton runs kernels on the CPU, as TRITON_INTERPRET=1 asks."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def fused_moe_kernel_triton(
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    mul_routed_weight: bool,
    top_k: int,
    config: dict[str, Any],
    compute_type: torch.dtype,
) -> None:
    """C[p] = A[p // top_k] B[e]^T for every pair p, with e its expert.

    A: [tokens, K]. B: [E, N, K]. C: [..., N], one row a pair.
    topk_weights, topk_ids: [T, k], of all pairs; row p is multiplied by its
        weight if mul_routed_weight.
    sorted_token_ids, expert_ids, num_tokens_post_padded: as
        `moe_align_block_size` returns them for config["BLOCK_SIZE_M"].
    config: sizes of blocks by the kernel's names; num_warps and num_stages.
    compute_type: of C.
    """
    import triton
    import triton.language as tl

    from minisgl.kernel.triton.fused_moe import fused_moe_kernel

    types = {
        torch.float32: tl.float32,
        torch.float16: tl.float16,
        torch.bfloat16: tl.bfloat16,
    }
    _, n, k = B.shape
    block_m, pairs = config["BLOCK_SIZE_M"], topk_ids.numel()
    # Few pairs cannot fill more blocks than there are pairs.
    places = min(len(sorted_token_ids), pairs * block_m)
    rows = triton.cdiv(places, block_m)
    columns = triton.cdiv(n, config["BLOCK_SIZE_N"])
    flat = C.view(-1, n)
    fused_moe_kernel[(rows * columns,)](
        *(A, B, flat, topk_weights),
        *(sorted_token_ids, expert_ids, num_tokens_post_padded),
        *(n, k, places, pairs),
        *(A.stride(0), A.stride(1)),
        *(B.stride(0), B.stride(2), B.stride(1)),
        *(flat.stride(0), flat.stride(1)),
        MUL_ROUTED_WEIGHT=mul_routed_weight,
        top_k=top_k,
        compute_type=types[compute_type],
        even_Ks=k % config["BLOCK_SIZE_K"] == 0,
        **config,
    )


def moe_sum_reduce_triton(input: torch.Tensor, output: torch.Tensor) -> None:
    """output [T, H] = the sum of input [T, k, H] over k, summed in float32."""
    import triton

    from minisgl.kernel.triton.fused_moe import moe_sum_reduce_kernel

    tokens, topk, hidden = input.shape
    block_m, block_dim = 1, min(1024, triton.next_power_of_2(hidden))
    grid = (triton.cdiv(tokens, block_m), triton.cdiv(hidden, block_dim))
    moe_sum_reduce_kernel[grid](
        *(input, *input.stride(), output, *output.stride()),
        *(tokens, topk, hidden),
        BLOCK_M=block_m,
        BLOCK_DIM=block_dim,
        NUM_STAGE=1,
        num_warps=4,
    )
