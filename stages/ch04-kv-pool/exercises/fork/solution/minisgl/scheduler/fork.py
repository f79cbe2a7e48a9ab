"""Fork a request: two go on from one prompt, whose pages lie there once."""

from __future__ import annotations

from minisgl.core import Req
from minisgl.kvcache import BaseKVCachePool
from minisgl.scheduler.cache import CacheManager

__all__ = ["ForkingManager", "copy_page"]


def copy_page(
    pool: BaseKVCachePool, source: int, target: int, tokens: int
) -> None:
    """Copy keys and values of the first `tokens` of a page, in every layer."""
    for layer in range(pool.num_layers):
        for cache in (pool.k_cache(layer), pool.v_cache(layer)):
            cache[target, :tokens] = cache[source, :tokens]


class ForkingManager(CacheManager):
    """A CacheManager under which requests can share pages."""

    def fork(self, req: Req, row: int, pool: BaseKVCachePool) -> Req:
        """A second request in row `row`, with all that `req` has so far.

        Full pages are shared: the new row of the page table names the same
        slots. Of a page that is partly filled, where both would write, the new
        request gets a copy. The new request may generate as many tokens as `req`
        still may, and has its row as its uid; no tensor of the host is shared.

        Raises:
            RuntimeError: the pool has no page left for the copy.
        """
        size, table = self.page_size, self.page_table
        rest = req.cached_len % size
        shared = req.cached_len - rest
        table[row, :shared] = table[req.table_idx, :shared]
        if rest:
            page = self._allocate(1)
            table[row, shared : shared + size] = self._page_to_token(page)
            old = int(table[req.table_idx, shared]) // size
            copy_page(pool, old, int(page), rest)
        return Req(
            input_ids=req.input_ids.clone(),
            table_idx=row,
            cached_len=req.cached_len,
            output_len=req.remain_len,
            uid=row,
            sampling_params=req.sampling_params,
        )
