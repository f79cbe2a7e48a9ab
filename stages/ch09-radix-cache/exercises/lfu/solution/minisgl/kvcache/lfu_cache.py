"""A radix cache that gives up first what was of use least often."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch

from minisgl.kvcache.radix_cache import RadixPrefixCache, RadixTreeNode

__all__ = ["LfuPrefixCache"]


class LfuPrefixCache(RadixPrefixCache):
    """Evicts the leaf with the fewest uses; of equals the least recent one.

    A walk through the tree, to match or to insert, uses every node on its way
    once.
    """

    def reset(self) -> None:
        super().reset()
        self._uses: WeakKeyDictionary[RadixTreeNode, int] = WeakKeyDictionary()
        self._heap: list[tuple[int, int, RadixTreeNode]] = []

    def uses(self, node: RadixTreeNode) -> int:
        """How often a node has been used.

        The upper half of a split has been used as often as the lower one, which
        is then its only child. A new leaf has not been used.
        """
        if node in self._uses:
            return self._uses[node]
        return max(map(self.uses, node.children.values()), default=0)

    def _tree_walk(self, input_ids: torch.Tensor) -> tuple[RadixTreeNode, int]:
        """As the parent's, and counts."""
        node, length = super()._tree_walk(input_ids)
        for used in _up_from(node):
            self._uses[used] = self.uses(used) + 1
        return node, length

    def _enqueue(self, node: RadixTreeNode) -> None:
        if self._evictable(node) and not node.queued:
            entry = self.uses(node), node.timestamp, node
            heapq.heappush(self._heap, entry)
            node.queued = True

    def _next_victim(self) -> RadixTreeNode:
        """The next leaf to evict, out of the heap.

        An entry may be out of date, as in the parent's queue: then the node
        waits anew, if it may be evicted at all.
        """
        while True:
            uses, tic, node = heapq.heappop(self._heap)
            node.queued = False
            current = (uses, tic) == (self.uses(node), node.timestamp)
            if current and self._evictable(node):
                return node
            self._enqueue(node)


def _up_from(node: RadixTreeNode) -> Iterator[RadixTreeNode]:
    """The node and those above it, the root left out."""
    while not node.is_root():
        yield node
        node = node.parent
