"""Products with weights of 8 or 4 bits: C++ for a CPU, beside torch.

A weight comes in one of three forms, which its dtype tells: int8 [out, in];
float8_e4m3fn [out, in]; uint8 [out, in / 2], two numbers of 4 bits each, as
`pack_int4` makes it. Its scale is float32 [out, groups]: each row is cut into
groups of `group_size` numbers, and the last may be short.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from minisgl.kernel.compile import Library
from minisgl.kernel.utils import try_load_jit

# More rows than that are worth a weight in the dtype of x, and torch's product.
_MOST_ROWS = 48
_FORMATS = {
    torch.int8: "Int8",
    torch.float8_e4m3fn: "E4M3",
    torch.uint8: "Int4",
}
_NUMBERS = {torch.float32: "Float32", torch.bfloat16: "BFloat16"}
# What the compiler may use, by what torch has found the machine to have.
_FLAGS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma"),
    "AVX2": ("-mavx2", "-mfma"),
}
_BLOCK = 32
"""Numbers that `pack_int4` puts into 16 bytes; the kernel takes whole blocks."""


@cache
def _load_module(weight: torch.dtype, x: torch.dtype) -> Library | None:
    capability = torch.backends.cpu.get_cpu_capability()
    function = f"quant_linear<{_FORMATS[weight]}, {_NUMBERS[x]}>"
    return try_load_jit(
        *("quant", _FORMATS[weight], _NUMBERS[x]),
        files=["quant_linear.cpp"],
        wrappers=[("quant_linear", function)],
        target="host",
        flags=("-O3", "-fopenmp", "-Wno-psabi", *_FLAGS.get(capability, ())),
    )


@cache
def _kernel_for(
    device: str, x: torch.dtype, weight: torch.dtype, width: int, group: int
) -> Callable[..., int] | None:
    """The kernel for rows of that width, if there is one."""
    whole = width % _BLOCK == 0 and group % _BLOCK == 0
    if device != "cpu" or x not in _NUMBERS or not whole:
        return None
    module = _load_module(weight, x)
    return None if module is None else module.quant_linear


def pack_int4(values: torch.Tensor) -> torch.Tensor:
    """int8 [out, in] of -8 to 7, in % 32 == 0 -> uint8 [out, in / 2].

    Of 32 numbers the first 16 are the low halves of 16 bytes, the others their
    high ones, each 8 more than it is.
    """
    low, high = (values + 8).to(torch.uint8).unflatten(1, (-1, 2, 16)).unbind(2)
    packed: torch.Tensor = (low | high << 4).flatten(1)
    return packed.contiguous()


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """The inverse of `pack_int4`."""
    bytes_ = packed.unflatten(1, (-1, 16))
    halves = torch.stack([bytes_ & 15, bytes_ >> 4], dim=2)
    values: torch.Tensor = halves.flatten(1).to(torch.int8) - 8
    return values


def dequantize(
    weight: torch.Tensor, scale: torch.Tensor, group_size: int
) -> torch.Tensor:
    """The weight [out, in] that is meant, in float32."""
    values = unpack_int4(weight) if weight.dtype == torch.uint8 else weight
    if scale.shape[1] > 1:
        scale = scale.repeat_interleave(group_size, dim=1)
        scale = scale[:, : values.shape[1]]
    return values.float() * scale


def quant_linear_torch(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, group_size: int
) -> torch.Tensor:
    """What `quant_linear` means, in torch."""
    return F.linear(x, dequantize(weight, scale, group_size).to(x.dtype))


def quant_linear(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, group_size: int
) -> torch.Tensor:
    """x [T, in] -> x W^T [T, out], in the dtype of x.

    weight, scale, group_size: see the top of this file.
    """
    rows, width = x.shape
    kernel = None
    if rows <= _MOST_ROWS:
        kernel = _kernel_for(
            x.device.type, x.dtype, weight.dtype, width, group_size
        )
    if kernel is None:
        return quant_linear_torch(x, weight, scale, group_size)
    x, outs = x.contiguous(), len(weight)
    out = x.new_empty(rows, outs)
    kernel(
        *(x.data_ptr(), weight.data_ptr(), scale.data_ptr(), out.data_ptr()),
        *(rows, outs, width, group_size, scale.shape[1]),
    )
    return out
