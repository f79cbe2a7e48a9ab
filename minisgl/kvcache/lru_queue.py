"""Nodes of a radix tree that wait for eviction, the longest unused first."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from minisgl.kvcache.radix_tree import RadixTreeNode


class LruQueue:
    """A heap of nodes by the time of their last use.

    An entry may be out of date: the node was used again since, or does not fit
    any more. That is found out when it comes up, so that a use costs nothing.

    fits: whether a node may be evicted now.
    """

    def __init__(self, fits: Callable[[RadixTreeNode], bool]) -> None:
        self._fits = fits
        self._heap: list[tuple[int, RadixTreeNode]] = []
        self._waiting: set[RadixTreeNode] = set()

    def offer(self, node: RadixTreeNode) -> None:
        """Let a node wait, if it fits and does not wait already."""
        if node not in self._waiting and self._fits(node):
            heapq.heappush(self._heap, (node.timestamp, node))
            self._waiting.add(node)

    def pop(self) -> RadixTreeNode | None:
        """Take out the longest unused node that fits; None if there is none."""
        while self._heap:
            tic, node = heapq.heappop(self._heap)
            self._waiting.remove(node)
            if tic == node.timestamp and self._fits(node):
                return node
            self.offer(node)
        return None

    def __contains__(self, node: RadixTreeNode) -> bool:
        return node in self._waiting
