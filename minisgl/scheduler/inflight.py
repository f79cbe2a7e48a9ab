"""Requests that batches in flight still read and write."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.core import Batch, Req


@dataclass
class _InFlight:
    """req: the request, as it was launched last.

    launches: batches in flight that have it.
    ending: it has ended; `failed` says how.
    """

    req: Req
    launches: int = 0
    ending: bool = False
    failed: bool = False


class InflightRows:
    """Puts off the end of a request until the device is done with its row.

    A request can end while a batch that has it is in flight: an end token was
    read one step late, or it was aborted. Its row and its pages may go to
    others only when that batch has come back, and exactly once.
    """

    def __init__(self) -> None:
        # By row and number: chunks of a prompt share both, and a number that
        # comes again while its first request is ending has another row.
        self._held: dict[tuple[int, int], _InFlight] = {}

    def launch(self, batch: Batch) -> None:
        """The rows of a batch are in use, once more."""
        for req in batch.reqs:
            entry = self._held.setdefault(_key(req), _InFlight(req))
            entry.req = req
            entry.launches += 1

    def retire(self, batch: Batch) -> list[tuple[Req, bool]]:
        """A batch has come back; call it before its tokens are dealt with.

        Returns (request, failed) of those that ended before and that no other
        batch in flight has: what they hold can be given back now.
        """
        ended = []
        for req in batch.reqs:
            entry = self._held[_key(req)]
            entry.launches -= 1
            if entry.launches == 0:
                del self._held[_key(req)]
                if entry.ending:
                    ended.append((entry.req, entry.failed))
        return ended

    def end(self, req: Req, failed: bool) -> bool:
        """A request ends: True if it can now, else `retire` will return it."""
        entry = self._held.get(_key(req))
        if entry is None:
            return True
        entry.ending, entry.failed = True, failed
        return False

    def is_ending(self, req: Req) -> bool:
        """Whether it ended while in flight, so that its tokens are void."""
        entry = self._held.get(_key(req))
        return entry is not None and entry.ending

    def find(self, uid: int) -> Req | None:
        """The request of that number, if it is in flight and has not ended."""
        live = (e.req for e in self._held.values() if not e.ending)
        return next((req for req in live if req.uid == uid), None)


def _key(req: Req) -> tuple[int, int]:
    return req.table_idx, req.uid
