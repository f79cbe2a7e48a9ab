"""The requests whose prompt is still to be computed, and who may come in."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from minisgl.core import Batch, Req
from minisgl.kvcache import BaseCacheHandle
from minisgl.message import UserMsg
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.decode import DecodeManager
from minisgl.scheduler.table import TableManager
from minisgl.scheduler.utils import PendingReq
from minisgl.utils import align_ceil
from minisgl.utils.device import to_device


class ChunkedReq(Req):
    """The part of a prompt that one step computes, when others follow."""

    def append_host(self, next_token: torch.Tensor) -> None:
        raise TypeError("the token after a chunk is one of the prompt's")

    @property
    def can_decode(self) -> bool:
        return False


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
        """The next chunk of a request, all of it if it fits the budget.

        A request is admitted with its first chunk, and only if all it may ever
        need is there; else None.
        """
        if self.token_budget <= 0:
            return None
        if (done := pending_req.chunked_req) is not None:
            resource = (done.cache_handle, done.table_idx, done.cached_len)
            return self._add_one_req(pending_req, *resource)
        allocated = self._try_allocate_one(pending_req)
        if allocated is None:
            return None
        handle, table_idx = allocated
        slots = self.table_manager.page_table[table_idx]
        slots[: handle.cached_len] = handle.get_matched_indices()
        return self._add_one_req(
            pending_req, handle, table_idx, handle.cached_len
        )

    def _try_allocate_one(
        self, req: PendingReq
    ) -> tuple[BaseCacheHandle, int] | None:
        """Lock the known prefix and take a row, or change nothing.

        What the host has of the prefix needs new pages like what nobody has.
        """
        if self.table_manager.available_size == 0:
            return None
        cache = self.cache_manager
        match = cache.match_req(req)
        handle = match.cuda_handle
        # Locked first: what it matched is then not counted as available.
        cache.lock(handle)
        needed = self._round(req.input_len + req.output_len) - handle.cached_len
        if needed + self.reserved_size > cache.available_size:
            cache.unlock(handle)
            return None
        return cache.load(match), self.table_manager.allocate()

    def _add_one_req(
        self,
        pending_req: PendingReq,
        cache_handle: BaseCacheHandle,
        table_idx: int,
        cached_len: int,
    ) -> Req:
        """Take as much of the prompt after `cached_len` as the budget allows."""
        length = min(pending_req.input_len, cached_len + self.token_budget)
        req_class = Req if length == pending_req.input_len else ChunkedReq
        ids = pending_req.input_ids[:length]
        total = self._round(pending_req.input_len + pending_req.output_len)
        self.reserved_size += total - self._round(cached_len)
        self.token_budget -= length - cached_len
        row = self.table_manager.token_pool[table_idx]
        # A row holds the whole text, so of a new request also what is cached.
        first = 0 if pending_req.chunked_req is None else cached_len
        row[first:length] = to_device(ids[first:], row.dtype, row.device)
        return req_class(
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
    """A queue: first come, first served, a long prompt in chunks.

    Who still waits for a grammar is passed over until it is there.

    prefills_in_a_row: after so many prefill batches, running requests get a
        decode batch; with 0 they wait until the queue is empty.
    """

    cache_manager: CacheManager
    table_manager: TableManager
    decode_manager: DecodeManager
    pending_list: list[PendingReq] = field(default_factory=list)
    prefills_in_a_row: int = 1
    _in_a_row: int = field(default=0, init=False)

    def add_one_req(self, req: UserMsg) -> None:
        """Put a request at the end of the queue."""
        self.pending_list.append(
            PendingReq(req.uid, req.input_ids, req.sampling_params)
        )

    def schedule_next_batch(self, prefill_budget: int) -> Batch | None:
        """Prompt tokens up to the budget, or None: nothing fits, or not now."""
        reqs: list[Req] = []
        if self.pending_list and not self._yields_to_decode():
            reqs = self._take(prefill_budget)
        if not reqs:
            self._in_a_row = 0
            return None
        self._in_a_row += 1
        return Batch(reqs=reqs, phase="prefill")

    def _yields_to_decode(self) -> bool:
        """Whether this step is left to the running requests; changes nothing."""
        limit = self.prefills_in_a_row
        return 0 < limit <= self._in_a_row and self.decode_manager.runnable

    def _take(self, prefill_budget: int) -> list[Req]:
        """Chunks from the head of the queue; an unfinished one stays its head.

        Those that wait for a grammar keep their place, and others pass them.
        """
        adder = PrefillAdder(
            token_budget=prefill_budget,
            reserved_size=self.decode_manager.inflight_tokens,
            cache_manager=self.cache_manager,
            table_manager=self.table_manager,
        )
        reqs: list[Req] = []
        unfinished: list[PendingReq] = []
        passed: list[PendingReq] = []
        for pending in self.pending_list:
            if pending.grammar is not None:
                passed.append(pending)
                continue
            req = adder.try_add_one(pending)
            if req is None:
                break
            reqs.append(req)
            if isinstance(req, ChunkedReq):
                pending.chunked_req = req
                unfinished.append(pending)
        seen = len(reqs) + len(passed)
        self.pending_list = unfinished + passed + self.pending_list[seen:]
        return reqs

    def abort_req(self, uid: int) -> Req | None:
        """Take a request out of the queue; return its last chunk, if it had one.

        What that holds is the caller's to give back.
        """
        gone = [r for r in self.pending_list if r.uid == uid]
        self.pending_list = [r for r in self.pending_list if r.uid != uid]
        return gone[0].chunked_req if gone else None

    @property
    def runnable(self) -> bool:
        return bool(self.pending_list)
