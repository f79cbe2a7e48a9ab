"""Twins wait a step: what one of them computes, the others find in the cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minisgl.core import Batch
from minisgl.scheduler.prefill import PrefillManager
from minisgl.scheduler.utils import PendingReq
from minisgl.utils import align_down

__all__ = ["TwinsWait", "shared_len"]


def shared_len(one: torch.Tensor, other: torch.Tensor, page_size: int) -> int:
    """Leading tokens that two prompts, int [n] and [m], have in common.

    Counted in whole pages, and short of the last token of `other`, which has to
    be computed whatever a cache holds.
    """
    n = min(len(one), len(other) - 1)
    differs = (one[:n] != other[:n]).nonzero()
    return align_down(int(differs[0]) if len(differs) else n, page_size)


@dataclass
class TwinsWait(PrefillManager):
    """A queue that does not compute the same prefix twice in one batch.

    least_gain: tokens that a request must save by waiting.
    """

    least_gain: int = 8

    def schedule_next_batch(self, prefill_budget: int) -> Batch | None:
        arrived = self.pending_list
        self.pending_list = self._ready(arrived)
        batch = super().schedule_next_batch(prefill_budget)
        taken = {req.uid for req in batch.reqs} if batch else set()
        self.pending_list = [r for r in arrived if r.uid not in taken]
        return batch

    def _ready(self, arrived: list[PendingReq]) -> list[PendingReq]:
        """Those of the queue that should not wait for an earlier one, in order.

        A request waits if some earlier request of the result shares at least
        `least_gain` tokens more with it than the prefix cache knows already.
        """
        ready: list[PendingReq] = []
        page_size = self.cache_manager.page_size
        for req in arrived:
            known = self.cache_manager.match_req(req).cuda_handle.cached_len
            ids = req.input_ids
            shared = (shared_len(r.input_ids, ids, page_size) for r in ready)
            if max(shared, default=0) - known < self.least_gain:
                ready.append(req)
        return ready
