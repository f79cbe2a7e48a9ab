"""A hierarchical cache whose host keeps only what is asked for repeatedly."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from minisgl.kvcache.base import MatchResult
from minisgl.kvcache.hiradix_cache import HiRadixPrefixCache
from minisgl.kvcache.radix_tree import RadixCacheHandle, RadixTreeNode


class SelectivePrefixCache(HiRadixPrefixCache):
    """Copies a node to the host once it was matched `least` times.

    Most prompts come once. A host that takes all of them forgets the few that
    come again and again.

    least: matches that a node needs. One with fewer gets no pages of the host,
        so that it is gone when it leaves the device.
    """

    least = 2

    def reset(self) -> None:
        super().reset()
        # Weak: a node that has left the tree needs no number.
        self._uses: WeakKeyDictionary[RadixTreeNode, int] = WeakKeyDictionary()

    def match_prefix(self, input_ids: torch.Tensor) -> MatchResult:
        """As everywhere; all nodes of the match were used once more.

        What of them is on the device, was used often enough and has no copy yet
        is copied now.
        """
        match = super().match_prefix(input_ids)
        there, known = match.cuda_handle, match.host_handle
        assert isinstance(there, RadixCacheHandle)
        assert isinstance(known, RadixCacheHandle)
        path, node = [], known.node
        while not node.is_root():
            path.append(node)
            node = node.parent
        for node in reversed(path):
            self._uses[node] = self._count(node) + 1
        self._copy_path(there.node)
        return match

    def _count(self, node: RadixTreeNode) -> int:
        """How often a node was matched.

        A node that was split has a new upper half. Until now that was matched as
        often as the lower half, which may have been split again.
        """
        if node in self._uses:
            return self._uses[node]
        return max(map(self._count, node.children.values()), default=0)

    def _give_host_pages(self, node: RadixTreeNode) -> bool:
        """As everywhere, for nodes that were matched `least` times."""
        return self._count(node) >= self.least and super()._give_host_pages(
            node
        )
