"""What lies between the projection and attention, in one pass, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_rope_kernel(
    qkv_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    rows_ptr,
    q_weight_ptr,
    k_weight_ptr,
    positions_ptr,
    cos_sin_ptr,
    row_stride,
    eps,
    Q_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    HEADS: tl.constexpr,
    V_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    STORE: tl.constexpr,
):
    """The heads of one token: normalise, rotate, and write them where they go.

    HEADS: a power of 2, at least the heads of q and k together.
    V_HEADS: the same for those of v.
    HALF: pairs that are rotated; component i goes with i + HALF.
    STORE: k and v go to a row of the pool; else k to the token's, and v nowhere.
    """
    token = tl.program_id(0).to(tl.int64)
    head, pair = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    is_q, there = head < Q_HEADS, head < Q_HEADS + K_HEADS
    source = qkv_ptr + token * row_stride + head * DIM + pair
    low = tl.load(source, mask=there, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=there, other=0.0).to(tl.float32)
    squares = tl.sum(low * low, 1) + tl.sum(high * high, 1)
    scale = (1.0 / tl.sqrt(squares / DIM + eps))[:, None]
    weight = tl.where(is_q, q_weight_ptr, k_weight_ptr) + pair
    kind = qkv_ptr.dtype.element_ty
    # Rounded where transformers rounds: after the norm, and after its weight.
    low = (low * scale).to(kind) * tl.load(weight)
    high = (high * scale).to(kind) * tl.load(weight + HALF)
    low, high = low.to(tl.float32), high.to(tl.float32)
    angle = cos_sin_ptr + tl.load(positions_ptr + token) * 2 * HALF + pair
    cos, sin = tl.load(angle), tl.load(angle + HALF)
    row = token
    if STORE:
        row = tl.load(rows_ptr + token).to(tl.int64)
        part = tl.arange(0, V_HEADS)[:, None]
        place, here = tl.arange(0, DIM)[None, :], part < K_HEADS
        first = token * row_stride + (Q_HEADS + K_HEADS) * DIM
        value = tl.load(qkv_ptr + first + part * DIM + place, mask=here)
        tl.store(v_ptr + (row * K_HEADS + part) * DIM + place, value, mask=here)
    target = pair + tl.where(
        is_q,
        q_ptr + (token * Q_HEADS + head) * DIM,
        k_ptr + (row * K_HEADS + head - Q_HEADS) * DIM,
    )
    tl.store(target, (low * cos - high * sin).to(kind), mask=there)
    tl.store(target + HALF, (high * cos + low * sin).to(kind), mask=there)
