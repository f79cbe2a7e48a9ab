"""Rows that batches in flight still read and write."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.core import Batch, Req


@dataclass
class _Row:
    """req: who holds the row, as it was launched last.

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
        self._rows: dict[int, _Row] = {}

    def launch(self, batch: Batch) -> None:
        """The rows of a batch are in use, once more."""
        for req in batch.reqs:
            row = self._rows.setdefault(req.table_idx, _Row(req))
            row.req = req
            row.launches += 1

    def retire(self, batch: Batch) -> list[tuple[Req, bool]]:
        """A batch has come back: (request, failed) of those that can end now."""
        ended = []
        for req in batch.reqs:
            row = self._rows[req.table_idx]
            row.launches -= 1
            if row.launches == 0:
                del self._rows[req.table_idx]
                if row.ending:
                    ended.append((row.req, row.failed))
        return ended

    def end(self, req: Req, failed: bool) -> bool:
        """A request ends: True if it can now, else `retire` will return it."""
        row = self._rows.get(req.table_idx)
        if row is None:
            return True
        row.ending, row.failed = True, failed
        return False

    def is_ending(self, req: Req) -> bool:
        """Whether it ended while in flight, so that its tokens are void."""
        row = self._rows.get(req.table_idx)
        return row is not None and row.ending

    def find(self, uid: int) -> Req | None:
        """The request of that number, if it is in flight and has not ended."""
        rows = self._rows.values()
        return next(
            (r.req for r in rows if r.req.uid == uid and not r.ending), None
        )
