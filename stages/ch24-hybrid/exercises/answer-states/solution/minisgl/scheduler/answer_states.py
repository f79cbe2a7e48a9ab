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
        length = self._exact_length(req) if finished else None
        if states is not None and length is not None:
            assert isinstance(handle, HybridHandle)
            if (snapshot := states.take(length)) is not None:
                self._copy(states, req.table_idx, snapshot)
                handle.saved.append(snapshot)
        super().cache_req(req, finished=finished)

    def _exact_length(self, req: Req) -> int | None:
        """Tokens that the tree will get, if the row holds their state.

        None: it does not. The device may be a token further than the host has
        read, and the tree takes whole pages.
        """
        length = len(req.input_ids) - 1
        if req.cached_len != length or length % self.page_size != 0:
            return None
        return length

    def _copy(self, states: StatePool, row: int, snapshot: Snapshot) -> None:
        """Copy both states of a row to where the snapshot lies."""
        for pool in (states.conv, states.recurrent):
            pool[:, snapshot.slot] = pool[:, row]
