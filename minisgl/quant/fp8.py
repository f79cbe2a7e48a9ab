"""Weights as float8_e4m3: close together near zero, far apart where large.

The format is that of Micikevicius et al. (arXiv:2209.05433): 4 bits of exponent
and 3 of mantissa, numbers up to 448, no infinity.
"""

from __future__ import annotations

from functools import cache

import torch

from minisgl.kernel.fused import runs_triton
from minisgl.quant.base import QuantMethod
from minisgl.utils.arch import is_sm90_supported

LARGEST = 448.0
FEW_ROWS = 64
"""Rows up to which our own product in float8 is quicker than torch's."""
_OUTS, _DEPTH, _STAGES = 64, 256, 6


class Fp8Method(QuantMethod):
    """float8 weights; on a Hopper float8 activations, too."""

    value_dtype = torch.float8_e4m3fn

    def _scale(self, groups: torch.Tensor) -> torch.Tensor:
        return groups.abs().amax(2, keepdim=True) / LARGEST

    def _round(self, scaled: torch.Tensor) -> torch.Tensor:
        return scaled.clamp(-LARGEST, LARGEST).to(self.value_dtype)

    def _product(
        self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        if _has_tensor_cores(x, weight, scale):
            return scaled_product(x, weight, scale)
        return super()._product(x, weight, scale)


def _has_tensor_cores(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> bool:
    """Whether a GPU multiplies both factors in float8.

    It wants one scale a row, a result in bfloat16, and multiples of 16.
    """
    fits = x.dtype == torch.bfloat16 and scale.shape[1] == 1
    fits = fits and all(n % 16 == 0 for n in weight.shape)
    return fits and x.is_cuda and is_sm90_supported()


def scaled_product(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """bfloat16 [T, in] -> [T, out]; each row of x becomes float8, too.

    weight: float8 [out, in]. scale: float32 [out, 1].
    """
    rows, row_scale = quantize_rows(x)
    few = 0 < len(x) <= FEW_ROWS and x.shape[1] % _DEPTH == 0
    if few and runs_triton(x.device):
        return _few_rows(rows, row_scale, weight, scale, x.dtype)
    out: torch.Tensor = torch._scaled_mm(
        rows,
        weight.t(),
        scale_a=row_scale,
        scale_b=scale.t(),
        out_dtype=x.dtype,
        use_fast_accum=True,
    )
    return out


def _few_rows(
    rows: torch.Tensor,
    row_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The product, without what torch's leaves unused of a GPU.

    A program reads several pieces of its weights ahead, as large ones as there
    is shared memory for: with little to multiply, waiting for memory is all
    that takes time.
    """
    import triton

    from minisgl.kernel.triton.fp8_linear import fp8_linear_kernel

    (count, width), outs = rows.shape, len(weight)
    out = torch.empty(count, outs, dtype=dtype, device=rows.device)
    programs, block = triton.cdiv(outs, _OUTS), triton.next_power_of_2(count)
    block = max(16, block)
    wide = _is_alone(rows.device, programs, _STAGES * (_OUTS + block) * _DEPTH)
    fp8_linear_kernel[programs,](
        *(rows, row_scale, weight, scale, out, count, outs, width),
        ROWS=block,
        OUTS=_OUTS,
        DEPTH=_DEPTH if wide else _DEPTH // 2,
        num_warps=4,
        num_stages=_STAGES,
    )
    return out


@cache
def _is_alone(device: torch.device, programs: int, size: int) -> bool:
    """Whether each program may fill `size` bytes of a multiprocessor's memory.

    With more programs than multiprocessors they have to share them.
    """
    if device.type != "cuda":
        return True
    found = torch.cuda.get_device_properties(device)
    # The system keeps a KiB of it for each block.
    fits = size <= found.shared_memory_per_multiprocessor - 1024
    return fits and programs <= found.multi_processor_count


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, n] -> float8 [T, n], and the scale of each row, float32 [T, 1].

    Rows may lie apart; within one there are no gaps.
    """
    if runs_triton(x.device):
        return _quantize_rows_triton(x)
    wide = x.float()
    scale = wide.abs().amax(1, keepdim=True) / LARGEST
    scale = torch.where(scale == 0, 1.0, scale)
    return (wide / scale).to(torch.float8_e4m3fn), scale


def _quantize_rows_triton(
    x: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    import triton

    from minisgl.kernel.triton.quantize_rows import quantize_rows_kernel

    rows, width = x.shape
    out = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    quantize_rows_kernel[rows,](
        *(x, out, scale, x.stride(0), width),
        LARGEST=LARGEST,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )
    return out, scale
