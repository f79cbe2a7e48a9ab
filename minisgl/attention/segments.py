"""A prefill batch cut where states are read, written and saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from minisgl.core import Req
from minisgl.kvcache.hybrid_cache import HybridHandle
from minisgl.kvcache.radix_tree import RadixTreeNode
from minisgl.kvcache.state_pool import Snapshot, StatePool
from minisgl.utils import align_down
from minisgl.utils.device import to_device

NOWHERE = -1


class Segment(NamedTuple):
    """Tokens start to stop of the flat batch, all of one request.

    source: the slot of the state before them. row: the slot that receives the
    state after them. save: a second one, or NOWHERE.
    """

    start: int
    stop: int
    source: int
    row: int
    save: int


@dataclass
class Wave:
    """Segments of different requests, which do not depend on each other.

    table: int32 [segments, 5] on the device, the fields of each.
    """

    segments: list[Segment]
    table: torch.Tensor

    @property
    def longest(self) -> int:
        """Tokens of the longest segment."""
        return max(one.stop - one.start for one in self.segments)


def cut_into_waves(
    reqs: list[Req], states: StatePool, page_size: int, device: torch.device
) -> list[Wave]:
    """The segments of a prefill batch, those that others continue first."""
    busy = {
        req.cache_handle.snapshot
        for req in reqs
        if isinstance(req.cache_handle, HybridHandle)
        and req.cache_handle.snapshot is not None
    }
    waves: list[list[Segment]] = []
    start, parting = 0, set[RadixTreeNode]()
    for req in reqs:
        saved = _save(req, states, page_size, busy, parting)
        for index, one in enumerate(_cut(req, start, saved, states)):
            if index == len(waves):
                waves.append([])
            waves[index].append(one)
        start += req.extend_len
    return [
        Wave(wave, to_device(torch.tensor(wave), torch.int32, device))
        for wave in waves
    ]


def _cut(
    req: Req, start: int, saved: list[Snapshot], states: StatePool
) -> list[Segment]:
    """The segments of one request, whose tokens begin at `start`."""
    source, row, segments = _source(req, states), req.table_idx, []
    ends = {snapshot.length: snapshot.slot for snapshot in saved}
    first = req.cached_len
    for end in sorted(ends | {req.device_len: None}):
        slot = ends.get(end)
        save = NOWHERE if slot is None else slot
        stop = start + end - first
        segments.append(Segment(start, stop, source, row, save))
        start, first, source = stop, end, row
    return segments


def _source(req: Req, states: StatePool) -> int:
    """Where the state before the tokens of this step is.

    A row is never cleared: its first segment reads zeros, or a snapshot, and
    what an earlier request left there is written over.
    """
    if req.cached_len == 0:
        return states.zeros
    handle = req.cache_handle
    if not isinstance(handle, HybridHandle) or handle.snapshot is None:
        return req.table_idx
    if req.cached_len > handle.cached_len:
        return req.table_idx
    # It has computed nothing of its own yet.
    assert handle.snapshot.slot is not None, "a snapshot in use was taken"
    return handle.snapshot.slot


def _save(
    req: Req,
    states: StatePool,
    page_size: int,
    busy: set[Snapshot],
    parting: set[RadixTreeNode],
) -> list[Snapshot]:
    """Take places for the states that this step should leave behind.

    They are of whole pages: of the last one that leaves a token to compute when
    the same prompt comes again, and of the place where the prompt leaves what
    the tree knows, for there others will leave it too.

    busy: snapshots that the batch reads. parting: places that it saves already.
    """
    handle = req.cache_handle
    if not isinstance(handle, HybridHandle):
        return []
    for old in [s for s in handle.saved if s.length != handle.known_len]:
        # Of an earlier chunk: this one leaves a better one.
        handle.saved.remove(old)
        states.release(old)
    wanted = {align_down(req.device_len - 1, page_size)}
    if handle.known not in parting:
        parting.add(handle.known)
        wanted.add(handle.known_len)
    taken = []
    for length in sorted(wanted):
        if not req.cached_len < length <= req.device_len:
            continue
        if (snapshot := states.take(length, busy)) is not None:
            taken.append(snapshot)
    handle.saved.extend(taken)
    return taken
