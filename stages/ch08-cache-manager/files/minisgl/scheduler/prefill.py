"""The requests whose prompt is still to be computed, and who may come in."""

from __future__ import annotations

from dataclasses import dataclass, field

from minisgl.core import Batch, Req
from minisgl.kvcache import BaseCacheHandle
from minisgl.message import UserMsg
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.decode import DecodeManager
from minisgl.scheduler.table import TableManager
from minisgl.scheduler.utils import PendingReq
from minisgl.utils import align_ceil
from minisgl.utils.device import to_device


@dataclass
class PrefillAdder:
    """Fills one prefill batch, request by request.

    token_budget: prompt tokens that still fit into the step.
    reserved_size: tokens of the pool that admitted requests may ask for.
    """

    token_budget: int
    reserved_size: int
    cache_manager: CacheManager
    table_manager: TableManager

    def try_add_one(self, pending_req: PendingReq) -> Req | None:
        """Admit a request if all it may ever need is there; else None."""
        resource = self._try_allocate_one(pending_req)
        if resource is None:
            return None
        return self._add_one_req(pending_req, *resource)

    def _try_allocate_one(
        self, req: PendingReq
    ) -> tuple[BaseCacheHandle, int] | None:
        """Lock the known prefix and take a row, or change nothing."""
        if self.table_manager.available_size == 0:
            return None
        cache = self.cache_manager
        handle = cache.match_req(req).cuda_handle
        # Locked first: what it matched is then not counted as available.
        cache.lock(handle)
        needed = self._round(req.input_len + req.output_len) - handle.cached_len
        if needed + self.reserved_size > cache.available_size:
            cache.unlock(handle)
            return None
        return handle, self.table_manager.allocate()

    def _add_one_req(
        self,
        pending_req: PendingReq,
        cache_handle: BaseCacheHandle,
        table_idx: int,
    ) -> Req:
        ids, cached_len = pending_req.input_ids, cache_handle.cached_len
        self.token_budget -= len(ids) - cached_len
        total = self._round(len(ids) + pending_req.output_len)
        self.reserved_size += total - cached_len
        row = self.table_manager.token_pool[table_idx]
        row[: len(ids)] = to_device(ids, row.dtype, row.device)
        slots = self.table_manager.page_table[table_idx]
        slots[:cached_len] = cache_handle.get_matched_indices()
        return Req(
            input_ids=ids,
            table_idx=table_idx,
            cached_len=cached_len,
            output_len=pending_req.output_len,
            uid=pending_req.uid,
            sampling_params=pending_req.sampling_params,
            cache_handle=cache_handle,
        )

    def _round(self, tokens: int) -> int:
        return align_ceil(tokens, self.cache_manager.page_size)


@dataclass
class PrefillManager:
    """A queue: first come, first served."""

    cache_manager: CacheManager
    table_manager: TableManager
    decode_manager: DecodeManager
    pending_list: list[PendingReq] = field(default_factory=list)

    def add_one_req(self, req: UserMsg) -> None:
        """Put a request at the end of the queue."""
        self.pending_list.append(
            PendingReq(req.uid, req.input_ids, req.sampling_params)
        )

    def schedule_next_batch(self, prefill_budget: int) -> Batch | None:
        """Whole prompts up to the budget; the first one may exceed it."""
        adder = PrefillAdder(
            token_budget=prefill_budget,
            reserved_size=self.decode_manager.inflight_tokens,
            cache_manager=self.cache_manager,
            table_manager=self.table_manager,
        )
        reqs: list[Req] = []
        for pending in self.pending_list:
            if reqs and pending.input_len > adder.token_budget:
                break
            req = adder.try_add_one(pending)
            if req is None:
                break
            reqs.append(req)
        self.pending_list = self.pending_list[len(reqs) :]
        return Batch(reqs=reqs, phase="prefill") if reqs else None

    def abort_req(self, uid: int) -> None:
        """Take the request of that number out of the queue, if it is here."""
        self.pending_list = [r for r in self.pending_list if r.uid != uid]

    @property
    def runnable(self) -> bool:
        return bool(self.pending_list)
