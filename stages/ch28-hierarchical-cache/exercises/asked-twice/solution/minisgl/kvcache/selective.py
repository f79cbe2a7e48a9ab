"""A hierarchical cache whose host keeps only what is asked for repeatedly."""

from __future__ import annotations

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
        self._uses: dict[RadixTreeNode, int] = {}

    def match_prefix(self, input_ids: torch.Tensor) -> MatchResult:
        """As everywhere; all nodes of the match were used once more.

        What of them is on the device, was used often enough and has no copy yet
        is copied now.
        """
        match = super().match_prefix(input_ids)
        there, known = match.cuda_handle, match.host_handle
        assert isinstance(there, RadixCacheHandle)
        assert isinstance(known, RadixCacheHandle)
        node = known.node
        while not node.is_root():
            self._uses[node] = self._count(node) + 1
            node = node.parent
        self._copy_path(there.node)
        return match

    def _count(self, node: RadixTreeNode) -> int:
        """How often a node was matched.

        A match that ends inside a node splits it. The upper half is new, and was
        matched as often as the lower one until now.
        """
        if node in self._uses:
            return self._uses[node]
        below = node.children.values()
        return max((self._uses.get(child, 0) for child in below), default=0)

    def _give_host_pages(self, node: RadixTreeNode) -> bool:
        """As everywhere, for nodes that were matched `least` times."""
        return self._count(node) >= self.least and super()._give_host_pages(
            node
        )
