"""What lies between the projection and attention, in one pass, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_rope_kernel(
    qkv_ptr,
    q_ptr,
    k_ptr,
    q_weight_ptr,
    k_weight_ptr,
    positions_ptr,
    cos_sin_ptr,
    row_stride,
    eps,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
):
    """One head of one token: normalise, rotate, and write it where it goes.

    HALF: pairs that are rotated; component i goes with i + HALF.
    """
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    is_q = head < Q_HEADS
    pair, past = tl.arange(0, HALF), 2 * HALF
    source = qkv_ptr + token * row_stride + head * DIM
    low = tl.load(source + pair).to(tl.float32)
    high = tl.load(source + HALF + pair).to(tl.float32)
    squares = tl.sum(low * low, 0) + tl.sum(high * high, 0)
    scale = 1.0 / tl.sqrt(squares / DIM + eps)
    weight = tl.where(is_q, q_weight_ptr, k_weight_ptr)
    kind = qkv_ptr.dtype.element_ty
    # Rounded where transformers rounds: after the norm, and after its weight.
    low = (low * scale).to(kind) * tl.load(weight + pair)
    high = (high * scale).to(kind) * tl.load(weight + HALF + pair)
    low, high = low.to(tl.float32), high.to(tl.float32)
    angle = cos_sin_ptr + tl.load(positions_ptr + token) * past
    cos, sin = tl.load(angle + pair), tl.load(angle + HALF + pair)
    target = tl.where(
        is_q,
        q_ptr + (token * Q_HEADS + head) * DIM,
        k_ptr + (token * K_HEADS + head - Q_HEADS) * DIM,
    )
    tl.store(target + pair, (low * cos - high * sin).to(kind))
    tl.store(target + HALF + pair, (high * cos + low * sin).to(kind))
