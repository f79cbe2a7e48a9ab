"""Pages for requests: lent, taken back, and shared through a prefix cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from minisgl.core import Req
from minisgl.kvcache import BaseCacheHandle, MatchResult, create_prefix_cache
from minisgl.scheduler.utils import PendingReq
from minisgl.utils import align_ceil, align_down
from minisgl.utils.counters import Counters, Ints
from minisgl.utils.device import to_device


class CacheManager:
    """Owns every page of the pool that is not in the hands of a request.

    A page is free, or in the prefix cache, or held by one running request:
    a request with `cached_len` tokens holds the pages up to there, of which
    its handle's are the cache's and the others its own.

    page_table: int32 [rows, length], filled here with KV slots.
    type: the prefix cache, by name.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        page_table: torch.Tensor,
        type: str = "auto",
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.page_table = page_table
        device = page_table.device
        self.free_pages = torch.arange(
            num_pages, dtype=torch.int32, device=device
        )
        self.prefix_cache = create_prefix_cache(device, type)
        self._lazy_free: list[torch.Tensor] | None = None

    def match_req(self, req: PendingReq) -> MatchResult:
        """The longest known prefix that leaves a token to compute."""
        return self.prefix_cache.match_prefix(req.input_ids[:-1])

    @property
    def available_size(self) -> int:
        """Tokens of whole pages that are free or could be."""
        evictable = self.prefix_cache.size_info.evictable_size
        return len(self.free_pages) * self.page_size + evictable

    def lock(self, handle: BaseCacheHandle) -> None:
        """Keep a matched prefix; it no longer counts as available."""
        self.prefix_cache.lock_handle(handle)

    def unlock(self, handle: BaseCacheHandle) -> None:
        self.prefix_cache.lock_handle(handle, unlock=True)

    def allocate_paged(self, reqs: list[Req]) -> None:
        """Give each request pages for the tokens it is about to compute.

        The last page of a request is filled up before it gets another.

        Raises:
            RuntimeError: too few pages are free; admission has to prevent it.
        """
        row, cached, length = Counters.of(reqs)
        held = _pages(cached, self.page_size)
        needed = _pages(length, self.page_size) - held
        total = int(needed.sum())
        if total > 0:
            slots = self._page_to_token(self._allocate(total))
            # Most rows of a decode batch have room in their last page.
            some = np.flatnonzero(needed)
            wanted = np.stack([row, held * self.page_size, needed], 1)[some]
            _write_page_table(self.page_table, slots, wanted, self.page_size)

    def cache_req(self, req: Req, *, finished: bool) -> None:
        """Put what the request has computed into the prefix cache.

        Its last token stays out: nothing has shown yet that it was computed
        well. Where the cache holds the same tokens already, its pages stay and
        the request's are freed, the row pointing at the cache's first. A
        request that is finished gives up its lock and all pages the cache did
        not take.
        """
        row, old = self.page_table[req.table_idx], req.cache_handle
        computed = min(req.cached_len, len(req.input_ids) - 1)
        length = align_down(computed, self.page_size)
        known, handle = self.prefix_cache.insert_prefix(
            req.input_ids[:length], row[:length].clone()
        )
        self.prefix_cache.keep_states(old, req.input_ids[:length])
        duplicates = row[old.cached_len : known].clone()
        if finished:
            self._free(duplicates)
            self._free_row(req, handle.cached_len)
        else:
            self.lock(handle)
            if len(duplicates) > 0:
                shared = handle.get_matched_indices()
                row[old.cached_len : known] = shared[old.cached_len : known]
            self._free(duplicates)
            req.cache_handle = handle
        self.unlock(old)

    def drop_req(self, req: Req) -> None:
        """Take back the request's own pages; nobody may reuse their content."""
        self._free_row(req, req.cache_handle.cached_len)
        self.unlock(req.cache_handle)

    def check_integrity(self) -> None:
        """Check the books of an idle pool; reads the device.

        Raises:
            RuntimeError: pages do not add up, are locked, or are free twice.
        """
        self.prefix_cache.check_integrity()
        cached, locked = self.prefix_cache.size_info
        free = len(self.free_pages)
        in_all = self.num_pages * self.page_size
        if locked or free * self.page_size + cached != in_all:
            raise RuntimeError(
                f"pages do not add up: {free} free, {cached} tokens cached, "
                f"{locked} locked, {self.num_pages} pages of "
                f"{self.page_size} in all"
            )
        if len(self.free_pages.unique()) != free:
            raise RuntimeError("a page is in the free list twice")

    @contextmanager
    def lazy_free_region(self) -> Iterator[None]:
        """Inside, freed pages are collected, and return together at the end."""
        self._lazy_free = []
        try:
            yield
        finally:
            freed, self._lazy_free = self._lazy_free, None
            self.free_pages = torch.cat([self.free_pages, *freed])

    def _allocate(self, needed_pages: int) -> torch.Tensor:
        """Pages, int32 [n]; evicts prefixes when too few are free."""
        short = needed_pages - len(self.free_pages)
        if short > 0:
            self._free(self.prefix_cache.evict(short * self.page_size))
        taken = self.free_pages[:needed_pages]
        self.free_pages = self.free_pages[needed_pages:]
        return taken

    def _free_row(self, req: Req, kept: int) -> None:
        """Free what the request holds past its first `kept` tokens."""
        held = align_ceil(req.cached_len, self.page_size)
        self._free(self.page_table[req.table_idx, kept:held])

    def _free(self, indices: torch.Tensor) -> None:
        """Free whole pages, given by the slots of all their tokens."""
        pages = indices[:: self.page_size] // self.page_size
        if self._lazy_free is not None:
            self._lazy_free.append(pages)
        else:
            self.free_pages = torch.cat([self.free_pages, pages])

    def _page_to_token(self, pages: torch.Tensor) -> torch.Tensor:
        """The slots of whole pages: [n] -> [n * page_size]."""
        offsets = torch.arange(
            self.page_size, dtype=pages.dtype, device=pages.device
        )
        return (pages.unsqueeze(1) * self.page_size + offsets).flatten()


def _write_page_table(
    page_table: torch.Tensor,
    allocated: torch.Tensor,
    allocation_info: Ints,
    page_size: int,
) -> None:
    """Write slots to rows: allocation_info has (row, first column, pages)."""
    rows, first, pages = allocation_info.T
    counts = pages * page_size
    shift = first - (counts.cumsum() - counts)
    columns = np.arange(len(allocated)) + shift.repeat(counts)
    where = np.stack([rows.repeat(counts), columns])
    row, column = to_device(
        torch.from_numpy(where), torch.int64, page_table.device
    )
    page_table[row, column] = allocated


def _pages(tokens: Ints, page_size: int) -> Ints:
    """Pages that so many tokens need, of each request."""
    return (tokens + (page_size - 1)) // page_size
