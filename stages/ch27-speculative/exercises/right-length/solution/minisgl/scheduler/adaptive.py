"""Drafts that get longer while they are right, and shorter when they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minisgl.core import Req
from minisgl.scheduler.drafts import BaseDrafter, Draft


@dataclass
class Record:
    """What is known of the drafts of one request.

    length: how many tokens to ask for.
    count: tokens of its last draft; 0 if that was empty.
    known: tokens of the request when that draft was made.
    """

    length: int
    count: int = 0
    known: int = 0


class AdaptiveDrafter(BaseDrafter):
    """Asks another drafter, for each request as many tokens as pay off there.

    first: tokens to ask for as long as nothing is known of a request.
    records: of every request that runs.
    """

    def __init__(self, inner: BaseDrafter, first: int = 2) -> None:
        self._inner, self._first = inner, first
        self.records: dict[Req, Record] = {}

    def propose(
        self, reqs: Sequence[Req], limits: Sequence[int]
    ) -> list[Draft]:
        """As in `BaseDrafter`, with lengths from what has been learnt.

        A new request begins with `first`. Nothing is longer than its limit.
        What was asked for is noted, so that the next call can learn from it.
        """
        wanted = []
        for req, limit in zip(reqs, limits, strict=True):
            record = self.records.setdefault(req, Record(self._first))
            self._learn(record, req)
            wanted.append(min(limit, record.length))
        drafts = self._inner.propose(reqs, wanted)
        for req, draft in zip(reqs, drafts, strict=True):
            record = self.records[req]
            record.count, record.known = len(draft.tokens), req.device_len
        return drafts

    def _learn(self, record: Record, req: Req) -> None:
        """Set the length by how many tokens of the last draft were right.

        If all of them were, twice as many as the draft had; else one more than
        were right. Nothing can be learnt of an empty draft.
        """
        if record.count == 0:
            return
        # A step makes one token more than drafts were right.
        right = req.device_len - record.known - 1
        if right == record.count:
            record.length = 2 * record.count
        else:
            record.length = right + 1

    def forget(self, req: Req) -> None:
        self.records.pop(req, None)
        self._inner.forget(req)

    def reset(self) -> None:
        self.records.clear()
        self._inner.reset()
