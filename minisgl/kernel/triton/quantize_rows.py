"""Activations to float8, each row with a scale of its own, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def quantize_rows_kernel(
    x_ptr,
    out_ptr,
    scale_ptr,
    row_stride,
    width,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of x: its largest number becomes LARGEST, and it stays in
    registers between the two times that it is needed."""
    row, place = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = place < width
    x = tl.load(x_ptr + row * row_stride + place, mask=inside, other=0.0)
    x = x.to(tl.float32)
    largest = tl.max(tl.abs(x), 0)
    scale = tl.where(largest > 0, largest / LARGEST, 1.0)
    kind = out_ptr.dtype.element_ty
    tl.store(out_ptr + row * width + place, (x / scale).to(kind), mask=inside)
    tl.store(scale_ptr + row, scale)
