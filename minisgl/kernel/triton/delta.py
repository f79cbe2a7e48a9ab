"""The gated delta rule in Triton; `minisgl.kernel.delta_rule` has its algebra.

One program has some columns of the state of one head. What tensors hold is
stated in `minisgl.kernel.delta`.
"""

from __future__ import annotations

import triton
import triton.language as tl

_EPS = tl.constexpr(1e-6)


@triton.jit
def _softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def _fade(gates, head, mask, a_log_ptr, dt_bias_ptr, V_HEADS: tl.constexpr):
    """(g, beta) of the tokens whose rows of gates begin at `gates`."""
    b = tl.load(gates + head, mask=mask, other=0.0).to(tl.float32)
    a = tl.load(gates + V_HEADS + head, mask=mask, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log_ptr + head).to(tl.float32))
    bias = tl.load(dt_bias_ptr + head).to(tl.float32)
    return -rate * _softplus(a + bias), 1.0 / (1.0 + tl.exp(-b))


@triton.jit
def delta_step_kernel(
    mixed_ptr,
    gates_ptr,
    a_log_ptr,
    dt_bias_ptr,
    state_ptr,
    rows_ptr,
    out_ptr,
    gates_stride,
    V_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    K_BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr,
):
    """One token of one row. K_BLOCK: K_DIM, rounded up to a power of 2."""
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(rows_ptr + row)
    i = tl.arange(0, K_BLOCK)
    j = tl.program_id(2) * V_BLOCK + tl.arange(0, V_BLOCK)
    in_k, in_v = i < K_DIM, j < V_DIM
    mixed = mixed_ptr + row * (2 * K_HEADS * K_DIM + V_HEADS * V_DIM)
    key = head // (V_HEADS // K_HEADS) * K_DIM + i
    q = tl.load(mixed + key, mask=in_k, other=0.0).to(tl.float32)
    k = tl.load(mixed + K_HEADS * K_DIM + key, mask=in_k, other=0.0)
    k = k.to(tl.float32)
    v = tl.load(
        mixed + 2 * K_HEADS * K_DIM + head * V_DIM + j, mask=in_v, other=0.0
    ).to(tl.float32)
    q *= 1.0 / tl.sqrt((tl.sum(q * q, 0) + _EPS) * K_DIM)
    k *= 1.0 / tl.sqrt(tl.sum(k * k, 0) + _EPS)
    gates = gates_ptr + row * gates_stride
    g, beta = _fade(gates, head, True, a_log_ptr, dt_bias_ptr, V_HEADS)
    place = (slot * V_HEADS + head) * K_DIM * V_DIM
    place += i[:, None] * V_DIM + j[None, :]
    mask = in_k[:, None] & in_v[None, :]
    state = tl.load(state_ptr + place, mask=mask, other=0.0) * tl.exp(g)
    missing = beta * (v - tl.sum(state * k[:, None], 0))
    state += k[:, None] * missing[None, :]
    tl.store(state_ptr + place, state, mask=mask)
    out = tl.sum(state * q[:, None], 0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row * V_HEADS + head) * V_DIM + j, out, mask=in_v)


@triton.jit
def delta_chunk_kernel(
    mixed_ptr,
    gates_ptr,
    a_log_ptr,
    dt_bias_ptr,
    state_ptr,
    table_ptr,
    out_ptr,
    gates_stride,
    V_HEADS: tl.constexpr,
    K_HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    K_BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One segment, 16 tokens at a time. PRECISION: of products in float32.

    The triangular system of 16 unknowns is solved by products: with N strictly
    lower, (I - N)^-1 = (I + N) (I + N^2) (I + N^4) (I + N^8).
    """
    segment, head = table_ptr + tl.program_id(0) * 5, tl.program_id(1)
    start = tl.load(segment).to(tl.int64)
    stop = tl.load(segment + 1).to(tl.int64)
    i = tl.arange(0, K_BLOCK)
    j = tl.program_id(2) * V_BLOCK + tl.arange(0, V_BLOCK)
    in_k, in_v = (i < K_DIM)[None, :], (j < V_DIM)[None, :]
    keys: tl.constexpr = K_HEADS * K_DIM
    width: tl.constexpr = 2 * keys + V_HEADS * V_DIM
    key = head // (V_HEADS // K_HEADS) * K_DIM + i[None, :]
    inner = head * K_DIM * V_DIM + i[:, None] * V_DIM + j[None, :]
    mask = (i < K_DIM)[:, None] & in_v
    size: tl.constexpr = V_HEADS * K_DIM * V_DIM
    source = tl.load(segment + 2).to(tl.int64) * size
    state = tl.load(state_ptr + source + inner, mask=mask, other=0.0)

    t = tl.arange(0, 16)
    lower, strictly = t[:, None] >= t[None, :], t[:, None] > t[None, :]
    same = (t[:, None] == t[None, :]).to(tl.float32)
    for first in range(start, stop, 16):
        token = first + t
        here = token < stop
        row = mixed_ptr + token[:, None] * width
        k_mask, v_mask = here[:, None] & in_k, here[:, None] & in_v
        q = tl.load(row + key, mask=k_mask, other=0.0).to(tl.float32)
        k = tl.load(row + keys + key, mask=k_mask, other=0.0).to(tl.float32)
        v = tl.load(
            row + 2 * keys + head * V_DIM + j[None, :], mask=v_mask, other=0.0
        ).to(tl.float32)
        q *= (1.0 / tl.sqrt((tl.sum(q * q, 1) + _EPS) * K_DIM))[:, None]
        k *= (1.0 / tl.sqrt(tl.sum(k * k, 1) + _EPS))[:, None]
        gates = gates_ptr + token * gates_stride
        g, beta = _fade(gates, head, here, a_log_ptr, dt_bias_ptr, V_HEADS)
        # Past the end nothing fades and nothing is written.
        g, beta = tl.where(here, g, 0.0), tl.where(here, beta, 0.0)
        total, whole = tl.cumsum(g, 0), tl.sum(g, 0)
        apart = tl.where(lower, total[:, None] - total[None, :], 0.0)
        fade = tl.where(lower, tl.exp(apart), 0.0)
        faded = tl.exp(total)[:, None]

        products = tl.dot(k, tl.trans(k), input_precision=PRECISION)
        power = tl.where(strictly, -beta[:, None] * fade * products, 0.0)
        inverse = same + power
        for _ in tl.static_range(3):
            power = tl.dot(power, power, input_precision=PRECISION)
            inverse += tl.dot(inverse, power, input_precision=PRECISION)
        held = tl.dot(k, state, input_precision=PRECISION)
        right = beta[:, None] * (v - faded * held)
        written = tl.dot(inverse, right, input_precision=PRECISION)

        seen = fade * tl.dot(q, tl.trans(k), input_precision=PRECISION)
        out = faded * tl.dot(q, state, input_precision=PRECISION)
        out += tl.dot(seen, written, input_precision=PRECISION)
        left = tl.trans(k * tl.exp(whole - total)[:, None])
        state = state * tl.exp(whole)
        state += tl.dot(left, written, input_precision=PRECISION)
        target = out_ptr + (token[:, None] * V_HEADS + head) * V_DIM
        out = out.to(out_ptr.dtype.element_ty)
        tl.store(target + j[None, :], out, mask=v_mask)

    row_slot = tl.load(segment + 3).to(tl.int64) * size
    save = tl.load(segment + 4).to(tl.int64)
    tl.store(state_ptr + row_slot + inner, state, mask=mask)
    if save >= 0:
        tl.store(state_ptr + save * size + inner, state, mask=mask)


@triton.jit
def gated_norm_kernel(
    x_ptr,
    gate_ptr,
    weight_ptr,
    out_ptr,
    gate_stride,
    eps,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one token: rms-norm(x) * weight * silu(gate)."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    mask = i < DIM
    place = (token * HEADS + head) * DIM + i
    x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + i, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(
        gate_ptr + token * gate_stride + head * DIM + i, mask=mask, other=0.0
    ).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 0) / DIM + eps)
    kind = out_ptr.dtype.element_ty
    # Rounded where torch rounds.
    normed = (x * scale).to(kind).to(tl.float32) * weight
    out = normed.to(kind).to(tl.float32) * gate / (1.0 + tl.exp(-gate))
    tl.store(out_ptr + place, out.to(kind), mask=mask)
