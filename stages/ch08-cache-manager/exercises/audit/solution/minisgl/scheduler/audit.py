"""Who holds which page: an audit that can run while requests do."""

from __future__ import annotations

from collections.abc import Iterable

from minisgl.core import Req
from minisgl.scheduler.cache import CacheManager
from minisgl.utils import align_ceil

__all__ = ["audit", "held_pages"]


def held_pages(manager: CacheManager, req: Req) -> tuple[list[int], list[int]]:
    """The pages of a request between two steps: the cache's, and its own.

    They are the pages of its `cached_len` tokens: its handle's belong to the
    prefix cache, all behind them to the request, the last perhaps partly filled.
    """
    size, row = manager.page_size, manager.page_table[req.table_idx]
    held = align_ceil(req.cached_len, size)
    pages = (row[:held:size] // size).tolist()
    shared = req.cache_handle.cached_len // size
    return pages[:shared], pages[shared:]


def audit(manager: CacheManager, reqs: Iterable[Req]) -> None:
    """Check that every page has exactly one owner.

    reqs: all requests that hold a row, between two steps.
    Owners are the free list, the prefix cache, and each request. The cache says
    only how many tokens it holds; which pages they are is known of those that a
    request reads.

    Raises:
        RuntimeError: a page has two owners, a page that a request reads from
            the cache has another owner, or the number of pages without an owner
            is not that of the prefix cache.
    """
    owners: dict[int, str] = {}
    reads: list[tuple[int, int]] = []

    def claim(pages: list[int], owner: str) -> None:
        for page in pages:
            if page in owners:
                raise RuntimeError(
                    f"page {page} belongs to {owners[page]} and to {owner}"
                )
            owners[page] = owner

    claim(manager.free_pages.tolist(), "the free list")
    for req in reqs:
        shared, own = held_pages(manager, req)
        claim(own, f"request {req.uid}")
        reads += [(page, req.uid) for page in shared]
    for page, uid in reads:
        if page in owners:
            raise RuntimeError(
                f"page {page}, which request {uid} reads from the prefix cache, "
                f"belongs to {owners[page]}"
            )
    cached = manager.prefix_cache.size_info.total_size // manager.page_size
    rest = manager.num_pages - len(owners)
    if rest != cached:
        raise RuntimeError(
            f"{rest} pages are neither free nor a request's, the prefix cache "
            f"holds {cached}"
        )
