"""A cache manager that keeps the state at the end of an answer, too."""

from __future__ import annotations

from minisgl.attention.stateful import current_states
from minisgl.core import Req
from minisgl.kvcache.hybrid_cache import HybridHandle
from minisgl.kvcache.state_pool import Snapshot, StatePool
from minisgl.scheduler.cache import CacheManager


class AnswerCacheManager(CacheManager):
    """So the next turn of a conversation computes its own question only."""

    def cache_req(self, req: Req, *, finished: bool) -> None:
        """As the base class, after the row's state has been saved.

        Only of a request that is finished, and only if the state is of what
        goes into the tree. A place is not always there. The handle of the
        request, `req.cache_handle`, takes the snapshot.
        """
        states, handle = current_states(), req.cache_handle
        if finished and states is not None and self._is_exact(req):
            assert isinstance(handle, HybridHandle)
            snapshot = states.take(req.cached_len)
            if snapshot is not None:
                self._copy(states, req.table_idx, snapshot)
                handle.saved.append(snapshot)
        super().cache_req(req, finished=finished)

    def _is_exact(self, req: Req) -> bool:
        """Whether the row holds the state of exactly what the tree will get.

        The device may be a token further than the host has read, and the tree
        takes whole pages.
        """
        known = req.cached_len == len(req.input_ids) - 1
        return known and req.cached_len % self.page_size == 0

    def _copy(self, states: StatePool, row: int, snapshot: Snapshot) -> None:
        """Copy both states of a row to where the snapshot lies."""
        for pool in (states.conv, states.recurrent):
            pool[:, snapshot.slot] = pool[:, row]
