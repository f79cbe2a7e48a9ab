"""The short convolution before the gated delta rule, in Triton.

A slot of `past_ptr` holds the last W - 1 inputs of every channel, oldest first.
What tensors hold is stated in `minisgl.kernel.delta`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def conv_step_kernel(
    x_ptr,
    weight_ptr,
    past_ptr,
    rows_ptr,
    out_ptr,
    x_stride,
    channels,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One token of one row, BLOCK channels of it; the past moves on."""
    row, slot = tl.program_id(0), tl.load(rows_ptr + tl.program_id(0))
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    past = past_ptr + (slot * channels + channel) * (W - 1)
    weight = weight_ptr + channel * W
    new = tl.load(x_ptr + row * x_stride + channel, mask=inside, other=0.0)
    last = tl.load(weight + W - 1, mask=inside, other=0.0).to(tl.float32)
    total = new.to(tl.float32) * last
    for age in tl.static_range(W - 1):
        old = tl.load(past + age, mask=inside, other=0.0)
        scale = tl.load(weight + age, mask=inside, other=0.0)
        total += old.to(tl.float32) * scale.to(tl.float32)
        if age > 0:
            tl.store(past + age - 1, old, mask=inside)
    tl.store(past + W - 2, new, mask=inside)
    target = out_ptr + row * channels + channel
    tl.store(target, _silu(total).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _input(x, past, place, mask, x_stride, W: tl.constexpr):
    """The input at `place`, counted from where the segment begins."""
    from_past = tl.load(
        past + W - 1 + place, mask=mask & (place < 0), other=0.0
    )
    from_x = tl.load(x + place * x_stride, mask=mask & (place >= 0), other=0.0)
    return tl.where(place < 0, from_past, from_x)


@triton.jit
def conv_tokens_kernel(
    x_ptr,
    weight_ptr,
    past_ptr,
    table_ptr,
    out_ptr,
    x_stride,
    channels,
    W: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """TOKENS tokens of a segment, BLOCK channels of them; the past stays."""
    segment = table_ptr + tl.program_id(0) * 5
    start = tl.load(segment).to(tl.int64)
    stop = tl.load(segment + 1).to(tl.int64)
    source = tl.load(segment + 2).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    mask = (token < stop - start)[:, None] & (channel < channels)[None, :]
    x = x_ptr + start * x_stride + channel[None, :]
    past = past_ptr + (source * channels + channel[None, :]) * (W - 1)
    total = tl.zeros((TOKENS, BLOCK), dtype=tl.float32)
    for age in tl.static_range(W):
        place = token[:, None] - (W - 1) + age
        seen = _input(x, past, place, mask, x_stride, W).to(tl.float32)
        scale = tl.load(
            weight_ptr + channel * W + age, mask=channel < channels, other=0.0
        )
        total += seen * scale.to(tl.float32)[None, :]
    target = out_ptr + (start + token)[:, None] * channels + channel[None, :]
    tl.store(target, _silu(total).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def conv_past_kernel(
    x_ptr,
    past_ptr,
    table_ptr,
    x_stride,
    channels,
    W: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The past after a segment, to its row and to where it is saved.

    SLOTS: W - 1, rounded up to a power of 2.
    """
    segment = table_ptr + tl.program_id(0) * 5
    start = tl.load(segment).to(tl.int64)
    stop = tl.load(segment + 1).to(tl.int64)
    source = tl.load(segment + 2).to(tl.int64)
    row = tl.load(segment + 3).to(tl.int64)
    save = tl.load(segment + 4).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    age = tl.arange(0, SLOTS)[None, :]
    mask = (channel < channels) & (age < W - 1)
    x = x_ptr + start * x_stride + channel
    past = past_ptr + (source * channels + channel) * (W - 1)
    place = stop - start - (W - 1) + age
    # All of it is read before any of it is written: both may be one slot.
    found = _input(x, past, place, mask, x_stride, W)
    tl.debug_barrier()
    inner = channel * (W - 1) + age
    size = channels * (W - 1)
    tl.store(past_ptr + row * size + inner, found, mask=mask)
    if save >= 0:
        tl.store(past_ptr + save * size + inner, found, mask=mask)
