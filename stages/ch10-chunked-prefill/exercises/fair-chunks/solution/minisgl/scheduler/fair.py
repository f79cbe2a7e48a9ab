"""Every waiting prompt gets a share of every step."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.core import Req
from minisgl.scheduler.prefill import ChunkedReq, PrefillAdder, PrefillManager
from minisgl.scheduler.utils import PendingReq
from minisgl.utils import align_ceil

__all__ = ["FairPrefill", "share_out"]


def share_out(budget: int, wants: list[int]) -> list[int]:
    """Split a budget by max-min fairness.

    Nobody gets more than it wants, and what it leaves goes to the others. All
    who get less than they want get the same, but for a rest that does not
    divide: it goes to the first of them, one each.
    """
    level = left = budget
    for behind, want in enumerate(sorted(wants)):
        level = left // (len(wants) - behind)
        if want > level:
            break
        left -= want
    shares = [min(want, level) for want in wants]
    rest = budget - sum(shares)
    for i, want in enumerate(wants):
        if rest > 0 and want > level:
            shares[i] += 1
            rest -= 1
    return shares


@dataclass
class FairPrefill(PrefillManager):
    """Chunks of all prompts at once, in place of one prompt after the other.

    Requests that have begun stand at the head of the queue, and each has its
    row and a promise of all pages it may need. Others are admitted in the order
    of arrival; where one does not fit, those behind it wait too, and their
    shares of the step are not used.
    """

    def _take(self, prefill_budget: int) -> list[Req]:
        """The chunks of this step; who is not done with its prompt stays."""
        adder = PrefillAdder(
            token_budget=0,
            reserved_size=self.decode_manager.inflight_tokens,
            cache_manager=self.cache_manager,
            table_manager=self.table_manager,
        )
        # Who has begun keeps its promise, also in a step without a share.
        promised = [self._promised(req) for req in self.pending_list]
        adder.reserved_size += sum(promised)
        wants = [self._left(req) for req in self.pending_list]
        shares = share_out(prefill_budget, wants)
        reqs: list[Req] = []
        waiting: list[PendingReq] = []
        full = False
        for pending, share, promise in zip(
            self.pending_list, shares, promised, strict=True
        ):
            req = None
            if share > 0 and not full:
                # Adding a chunk makes the promise anew.
                adder.reserved_size -= promise
                adder.token_budget = share
                req = adder.try_add_one(pending)
                full = req is None
            if req is not None:
                reqs.append(req)
            if isinstance(req, ChunkedReq):
                pending.chunked_req = req
            if req is None or isinstance(req, ChunkedReq):
                waiting.append(pending)
        self.pending_list = waiting
        return reqs

    def _left(self, req: PendingReq) -> int:
        """Prompt tokens that are still to be computed, at least one."""
        if req.chunked_req is not None:
            return req.input_len - req.chunked_req.cached_len
        known = self.cache_manager.match_req(req).cuda_handle.cached_len
        return req.input_len - known

    def _promised(self, req: PendingReq) -> int:
        """Tokens of the pool, in whole pages, that a begun request may ask for."""
        if req.chunked_req is None:
            return 0
        size = self.cache_manager.page_size
        total = align_ceil(req.input_len + req.output_len, size)
        return total - align_ceil(req.chunked_req.cached_len, size)
