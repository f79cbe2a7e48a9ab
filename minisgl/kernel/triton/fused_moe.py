"""The products of a layer of experts, in Triton.

What one program computes is one block of the result, with one expert.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _block_of(
    program,
    rows,
    columns,
    GROUP_SIZE_M: tl.constexpr,
):
    """(row, column) of a program's block.

    Programs with near numbers run at the same time. GROUP_SIZE_M rows go over
    all columns together, so that what they read of both factors is still in
    the cache for the next.
    """
    group = program // (GROUP_SIZE_M * columns)
    first = group * GROUP_SIZE_M
    height = tl.minimum(rows - first, GROUP_SIZE_M)
    inside = program % (GROUP_SIZE_M * columns)
    return first + inside % height, inside // height


@triton.jit
def fused_moe_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    topk_weights_ptr,
    sorted_token_ids_ptr,
    expert_ids_ptr,
    num_tokens_post_padded_ptr,
    N,
    K,
    EM,
    num_valid_tokens,
    stride_am,
    stride_ak,
    stride_be,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr,
    MUL_ROUTED_WEIGHT: tl.constexpr,
    top_k: tl.constexpr,
    compute_type: tl.constexpr,
    even_Ks: tl.constexpr,
):
    """Row p of C is row p // top_k of A times the matrix of p's expert.

    A [tokens, K], B [experts, K, N] by its strides, C [pairs, N]; pairs as
    `moe_align_block_size` gives them. EM: places that a program exists for.
    num_valid_tokens: pairs; a place with that number is padding.
    MUL_ROUTED_WEIGHT: multiply row p by topk_weights[p].
    even_Ks: BLOCK_SIZE_K divides K.
    """
    row, column = _block_of(
        tl.program_id(0),
        tl.cdiv(EM, BLOCK_SIZE_M),
        tl.cdiv(N, BLOCK_SIZE_N),
        GROUP_SIZE_M,
    )
    if row * BLOCK_SIZE_M >= tl.load(num_tokens_post_padded_ptr):
        return
    places = row * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    pairs = tl.load(sorted_token_ids_ptr + places).to(tl.int64)
    is_pair = pairs < num_valid_tokens
    expert = tl.load(expert_ids_ptr + row).to(tl.int64)

    # Past the last column start again: what is computed there is not stored.
    columns = column * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    wrapped = (columns % N).to(tl.int64)
    inner = tl.arange(0, BLOCK_SIZE_K)
    a_rows = a_ptr + (pairs // top_k)[:, None] * stride_am
    b_columns = b_ptr + expert * stride_be + wrapped[None, :] * stride_bn

    total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_SIZE_K):
        k = start + inner
        a_block = a_rows + k[None, :] * stride_ak
        b_block = b_columns + k[:, None] * stride_bk
        if even_Ks:
            a = tl.load(a_block, mask=is_pair[:, None], other=0.0)
            b = tl.load(b_block)
        else:
            inside = k < K
            a_mask = is_pair[:, None] & inside[None, :]
            a = tl.load(a_block, mask=a_mask, other=0.0)
            b = tl.load(b_block, mask=inside[:, None], other=0.0)
        # "ieee": float32 stays float32; narrower types are not affected.
        total = tl.dot(a, b, total, input_precision="ieee")

    if MUL_ROUTED_WEIGHT:
        weights = tl.load(topk_weights_ptr + pairs, mask=is_pair, other=0.0)
        total = total * weights[:, None]
    target = c_ptr + pairs[:, None] * stride_cm + columns[None, :] * stride_cn
    mask = is_pair[:, None] & (columns < N)[None, :]
    tl.store(target, total.to(compute_type), mask=mask)


@triton.jit
def moe_sum_reduce_kernel(
    input_ptr,
    input_stride_0,
    input_stride_1,
    input_stride_2,
    output_ptr,
    output_stride_0,
    output_stride_1,
    token_num: int,
    topk_num: int,
    hidden_dim: int,
    BLOCK_M: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    NUM_STAGE: tl.constexpr,
):
    """output[t] is the sum of input[t, 0 ... topk_num - 1], in float32.

    input [tokens, topk, hidden], output [tokens, hidden]. A program sums
    BLOCK_DIM numbers of BLOCK_M tokens.
    """
    tokens = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    numbers = tl.program_id(1) * BLOCK_DIM + tl.arange(0, BLOCK_DIM)
    mask = (tokens < token_num)[:, None] & (numbers < hidden_dim)[None, :]
    tokens = tokens.to(tl.int64)[:, None]
    source = (
        input_ptr + tokens * input_stride_0 + numbers[None, :] * input_stride_2
    )
    total = tl.zeros((BLOCK_M, BLOCK_DIM), dtype=tl.float32)
    for choice in tl.range(0, topk_num, num_stages=NUM_STAGE):
        total += tl.load(
            source + choice * input_stride_1, mask=mask, other=0.0
        ).to(tl.float32)
    target = (
        output_ptr
        + tokens * output_stride_0
        + numbers[None, :] * output_stride_1
    )
    tl.store(target, total.to(output_ptr.dtype.element_ty), mask=mask)
