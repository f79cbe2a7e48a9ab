"""Shortest prompt first, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import dataclass, field

from minisgl.core import Batch
from minisgl.scheduler.prefill import PrefillManager
from minisgl.scheduler.utils import PendingReq

__all__ = ["ShortestFirst"]


@dataclass
class ShortestFirst(PrefillManager):
    """A queue in which short prompts pass long ones.

    patience: how often a request lets itself be passed. One whose patience has
        run out is served before all that have some, and passed no more.
    """

    patience: int = 4
    _passed: dict[int, int] = field(default_factory=dict, init=False)

    def schedule_next_batch(self, prefill_budget: int) -> Batch | None:
        arrived = self.pending_list
        self.pending_list = self._order(arrived)
        batch = super().schedule_next_batch(prefill_budget)
        taken = {req.uid for req in batch.reqs} if batch else set()
        self._note_passes(arrived, taken)
        self.pending_list = [r for r in arrived if r.uid not in taken]
        return batch

    def abort_req(self, uid: int) -> None:
        super().abort_req(uid)
        self._passed.pop(uid, None)

    def _order(self, arrived: list[PendingReq]) -> list[PendingReq]:
        """The queue in the order of serving; `arrived` is in that of arrival.

        First those without patience left, in the order of arrival; then the
        others, short prompts first, equal ones in the order of arrival.
        """

        def turn(req: PendingReq) -> tuple[bool, int]:
            patient = self._passed.get(req.uid, 0) < self.patience
            return patient, req.input_len if patient else 0

        return sorted(arrived, key=turn)

    def _note_passes(self, arrived: list[PendingReq], taken: set[int]) -> None:
        """Count, after a batch, who was passed in it.

        That is whoever still waits though somebody who arrived later was taken:
        once a batch, however many passed. Nothing is kept of those taken.
        """
        places = [at for at, req in enumerate(arrived) if req.uid in taken]
        for at, req in enumerate(arrived):
            if req.uid in taken:
                self._passed.pop(req.uid, None)
            elif at < max(places, default=0):
                self._passed[req.uid] = self._passed.get(req.uid, 0) + 1
