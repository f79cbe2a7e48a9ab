"""Kernels of our own, each beside the lines of torch that say what it does."""

from minisgl.kernel.index import indexing
from minisgl.kernel.moe_impl import (
    fused_moe_kernel_triton,
    moe_sum_reduce_triton,
)
from minisgl.kernel.radix import fast_compare_key
from minisgl.kernel.store import store_cache
from minisgl.kernel.utils import simulated_kernels

__all__ = [
    "fast_compare_key",
    "fused_moe_kernel_triton",
    "indexing",
    "moe_sum_reduce_triton",
    "simulated_kernels",
    "store_cache",
]
