"""Few rows times a weight, both in float8, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fp8_linear_kernel(
    x_ptr,
    x_scale_ptr,
    weight_ptr,
    scale_ptr,
    out_ptr,
    rows,
    outs,
    width,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """OUTS columns of the product, for all rows: every weight is read once.

    The weights are the first factor. A tensor core of a Hopper takes 64 of its
    rows at the least, and of the other factor's columns, which are x, any few.
    """
    row, depth = tl.arange(0, ROWS), tl.arange(0, DEPTH)
    out = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    # What is not there is a copy of the last one, and is not stored.
    here = tl.minimum(out, outs - 1).to(tl.int64)
    weight = weight_ptr + here[:, None] * width + depth[None, :]
    x = x_ptr + tl.minimum(row, rows - 1)[:, None] * width + depth[None, :]
    sums = tl.zeros([OUTS, ROWS], dtype=tl.float32)
    for _ in range(0, width, DEPTH):
        sums = tl.dot(tl.load(weight), tl.trans(tl.load(x)), sums)
        weight += DEPTH
        x += DEPTH
    sums *= tl.load(scale_ptr + here)[:, None]
    inside = row < rows
    sums *= tl.load(x_scale_ptr + row, mask=inside, other=0.0)[None, :]
    place = out_ptr + row[None, :].to(tl.int64) * outs + out[:, None]
    stored = inside[None, :] & (out < outs)[:, None]
    tl.store(place, sums.to(out_ptr.dtype.element_ty), mask=stored)
