"""The requests that have their prompt behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from minisgl.core import Batch, Req
from minisgl.utils import align_ceil


@dataclass
class DecodeManager:
    """Every request that can decode is in every decode batch.

    page_size: tokens a page holds.
    running_reqs: by uid, oldest first.
    """

    page_size: int
    running_reqs: dict[int, Req] = field(default_factory=dict)

    def filter_reqs(self, reqs: Iterable[Req]) -> None:
        """After a step: take in those that can go on, let go the others."""
        for req in reqs:
            self.running_reqs[req.uid] = req
        going_on = {u: r for u, r in self.running_reqs.items() if r.can_decode}
        self.running_reqs = going_on

    def remove_req(self, req: Req) -> None:
        """Let go of a request; no matter whether it is here."""
        self.running_reqs.pop(req.uid, None)

    def abort_req(self, uid: int) -> Req | None:
        """Take out the request of that number, if it is here."""
        return self.running_reqs.pop(uid, None)

    @property
    def inflight_tokens(self) -> int:
        """Tokens of the pool that running requests may still ask for.

        Counted in whole pages, for that is how they will ask.
        """
        return sum(
            align_ceil(req.max_device_len, self.page_size)
            - align_ceil(req.cached_len, self.page_size)
            for req in self.running_reqs.values()
        )

    def schedule_next_batch(self) -> Batch | None:
        """All of them, or None when there are none."""
        if not self.runnable:
            return None
        # By length, so that what pads to the longest neighbour pads little.
        reqs = sorted(self.running_reqs.values(), key=lambda r: r.device_len)
        return Batch(reqs=reqs, phase="decode")

    @property
    def runnable(self) -> bool:
        return bool(self.running_reqs)
