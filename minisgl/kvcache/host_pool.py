"""Pages of keys and values in the memory of the host."""

from __future__ import annotations

import os

import numpy as np
import torch

from minisgl.kvcache.base import BaseKVCachePool
from minisgl.utils.device import pinned_zeros


class HostPages:
    """Which pages of a host pool are free."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = self.num_free = num_pages
        self._free = np.ones(num_pages, dtype=np.bool_)

    def allocate(self, count: int) -> torch.Tensor:
        """The lowest free pages, int64 [count], rising.

        So pages that are taken together mostly follow one another, and a run of
        pages is copied at once. Asserts that there are so many; look at `num_free`
        first.
        """
        taken = np.flatnonzero(self._free)[:count]
        assert len(taken) == count, "more pages asked for than are free"
        self._free[taken] = False
        self.num_free -= count
        return torch.from_numpy(taken)

    def free(self, pages: torch.Tensor) -> None:
        """Give pages back."""
        numbers = pages.numpy()
        assert not self._free[numbers].any(), "a host page is given back twice"
        self._free[numbers] = True
        self.num_free += len(numbers)


def words(cache: torch.Tensor) -> torch.Tensor:
    """A layer's keys or values as rows of int64, one row a page: a view.

    Whoever only moves pages need not know what is in them.
    """
    return cache.view(len(cache), -1).view(torch.int64)


def page_bytes(pool: BaseKVCachePool) -> int:
    """What a page takes, with the keys and values of all layers."""
    layers = range(pool.num_layers)
    caches = (
        cache(i) for i in layers for cache in (pool.k_cache, pool.v_cache)
    )
    return sum(cache[0].nbytes for cache in caches)


def pages_within(pool: BaseKVCachePool, gib: float, ranks: int) -> int:
    """Pages of this rank that fit if all ranks together take so many GiB.

    Raises:
        ValueError: that is more than the machine has, or less than a page.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if gib * 2**30 > memory:
        raise ValueError(
            f"host_cache_gb is {gib:g}, this machine has {memory / 2**30:.0f} "
            "GiB in all; choose less"
        )
    size = page_bytes(pool)
    pages = int(gib * 2**30) // (size * ranks)
    if pages < 1:
        raise ValueError(
            f"host_cache_gb is {gib:g}, which is no page: one takes "
            f"{size * ranks / 2**30:.3g} GiB; choose more, or 0 for no host cache"
        )
    return pages


def host_buffer(pool: BaseKVCachePool, num_pages: int) -> torch.Tensor:
    """Zeros, int64 [layers, 2, num_pages, words of a page], pinned for a GPU.

    A layer's keys lie page by page, and after them its values: what a forward
    needs first can be fetched first.
    """
    size = words(pool.k_cache(0)).shape[1]
    shape = (pool.num_layers, 2, num_pages, size)
    return pinned_zeros(shape, torch.int64, pool.device)
