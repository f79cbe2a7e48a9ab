"""A radix cache that reuses a prefix only where a state has been kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from minisgl.kvcache.base import BaseCacheHandle, InsertResult, MatchResult
from minisgl.kvcache.radix_cache import RadixPrefixCache
from minisgl.kvcache.radix_tree import RadixCacheHandle, RadixTreeNode
from minisgl.kvcache.state_pool import Snapshot, StatePool


@dataclass(frozen=True, eq=False)
class HybridHandle(RadixCacheHandle):
    """A prefix whose keys and values are in the tree, and its state.

    snapshot: the state after the prefix; None for the empty one.
    known, known_len: where the tree has no more keys and values, and how many
        tokens that is.
    saved: states that the request has had written since, not yet in the tree.
    """

    snapshot: Snapshot | None
    known: RadixTreeNode
    known_len: int
    saved: list[Snapshot] = field(default_factory=list)


class HybridRadixCache(RadixPrefixCache):
    """The radix cache of a model some of whose layers keep a state.

    Keys and values of a prefix are a prefix of the keys and values. A state is
    of its tokens as a whole, so that the tree matches down to the last node
    that a snapshot was kept for. Marconi (Pan et al., arXiv:2411.19379) does so
    too, and likewise keeps states where two prompts part.
    """

    def __init__(self, device: torch.device, states: StatePool) -> None:
        self._states = states
        super().__init__(device)

    def reset(self) -> None:
        super().reset()
        self._snapshots: dict[RadixTreeNode, Snapshot] = {}
        self._states.clear()

    def match_prefix(self, input_ids: torch.Tensor) -> MatchResult:
        node, length = self._tree_walk(input_ids)
        known = node, length
        while not node.is_root():
            snapshot = self._snapshots.get(node)
            if snapshot is not None and snapshot.slot is not None:
                self._states.keep(snapshot)
                return MatchResult(HybridHandle(length, node, snapshot, *known))
            length -= node.length
            node = node.parent
        return MatchResult(HybridHandle(0, node, None, *known))

    def insert_prefix(
        self, input_ids: torch.Tensor, indices: torch.Tensor
    ) -> InsertResult:
        known, handle = super().insert_prefix(input_ids, indices)
        assert isinstance(handle, RadixCacheHandle)
        length, node = handle.cached_len, handle.node
        return InsertResult(
            known, HybridHandle(length, node, None, node, length)
        )

    def keep_states(
        self, handle: BaseCacheHandle, input_ids: torch.Tensor
    ) -> None:
        assert isinstance(handle, HybridHandle)
        while handle.saved:
            snapshot = handle.saved.pop()
            node, length = self._tree_walk(input_ids[: snapshot.length])
            old = self._snapshots.get(node)
            if length < snapshot.length or node.is_root():
                self._states.release(snapshot)
            elif old is not None and old.slot is not None:
                # Both are states of the same tokens.
                self._states.keep(old)
                self._states.release(snapshot)
            else:
                self._snapshots[node] = snapshot
                self._states.keep(snapshot)

    def lock_handle(
        self, handle: BaseCacheHandle, unlock: bool = False
    ) -> None:
        super().lock_handle(handle, unlock)
        assert isinstance(handle, HybridHandle)
        # What nobody has kept by now was written by a request that failed.
        while unlock and handle.saved:
            self._states.release(handle.saved.pop())

    def _next_victim(self) -> RadixTreeNode:
        """It loses its end, and the state is the one at its end."""
        node = super()._next_victim()
        if (snapshot := self._snapshots.pop(node, None)) is not None:
            self._states.release(snapshot)
        return node

    def check_integrity(self) -> None:
        super().check_integrity()
        nodes, live = set(self._nodes()), 0
        for node, snapshot in self._snapshots.items():
            if snapshot.slot is None:
                continue
            live += 1
            if node not in nodes:
                raise RuntimeError("a snapshot is of a node that was evicted")
            if snapshot.length != _depth(node):
                raise RuntimeError(
                    f"a snapshot of {snapshot.length} tokens stands where "
                    f"{_depth(node)} end"
                )
        free = self._states.num_free
        if free + live != self._states.num_snapshots:
            raise RuntimeError(
                f"snapshots do not add up: {free} free, {live} in the tree, "
                f"{self._states.num_snapshots} in all"
            )


def _depth(node: RadixTreeNode) -> int:
    """Tokens from the root to the end of a node."""
    length = 0
    while not node.is_root():
        length += node.length
        node = node.parent
    return length
