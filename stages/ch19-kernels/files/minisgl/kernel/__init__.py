"""Kernels of our own, each beside the lines of torch that say what it does."""

from minisgl.kernel.index import indexing
from minisgl.kernel.radix import fast_compare_key
from minisgl.kernel.store import store_cache
from minisgl.kernel.utils import simulated_kernels

__all__ = ["fast_compare_key", "indexing", "simulated_kernels", "store_cache"]
