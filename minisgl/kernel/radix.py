"""Where two keys of the radix tree part: C++ beside its torch reference."""

from __future__ import annotations

from functools import cache

import torch

from minisgl.kernel.compile import Library
from minisgl.kernel.utils import make_cpp_args, try_load_jit


@cache
def _load_radix_module(token: torch.dtype) -> Library | None:
    return try_load_jit(
        "radix",
        files=["radix.cpp"],
        wrappers=[("common_prefix", f"common_prefix<{make_cpp_args(token)}>")],
        target="host",
    )


def fast_compare_key_torch(x: torch.Tensor, y: torch.Tensor) -> int:
    """What `fast_compare_key` means, in torch."""
    n = min(len(x), len(y))
    differs = (x[:n] != y[:n]).nonzero()
    return n if len(differs) == 0 else int(differs[0])


def fast_compare_key(x: torch.Tensor, y: torch.Tensor) -> int:
    """How many leading tokens x and y have in common.

    x, y: int32 or int64 on the CPU, without gaps, of any lengths.

    Raises:
        TypeError: keys of another dtype.
        ValueError: keys of two dtypes, with gaps, or not on the CPU.
    """
    if x.dtype != y.dtype or not (x.is_contiguous() and y.is_contiguous()):
        raise ValueError("keys are of one dtype and without gaps")
    if x.is_cuda or y.is_cuda:
        raise ValueError("keys lie on the CPU")
    module = _load_radix_module(x.dtype)
    if module is None:
        return fast_compare_key_torch(x, y)
    length = min(len(x), len(y))
    same: int = module.common_prefix(x.data_ptr(), y.data_ptr(), length)
    return same
