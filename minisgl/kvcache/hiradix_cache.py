"""A radix tree over two tiers: prefixes that leave the device go to the host."""

from __future__ import annotations

import torch

from minisgl.kvcache.base import BaseCacheHandle, InsertResult, MatchResult
from minisgl.kvcache.host_pool import HostPages
from minisgl.kvcache.lru_queue import LruQueue
from minisgl.kvcache.radix_cache import RadixPrefixCache
from minisgl.kvcache.radix_tree import RadixCacheHandle, RadixTreeNode
from minisgl.kvcache.tiered_pool import TieredKVCache
from minisgl.utils import align_ceil
from minisgl.utils.device import Event, wait_event

_AT_ONCE = 256
"""Tokens to evict at least, if so many may be: one by one they would leave a
node each, and a copy each."""


class HiRadixPrefixCache(RadixPrefixCache):
    """Keeps a prefix on the device, on the host, or on both.

    Every node has pages on a tier. On a path those on the device come first, for
    both tiers evict leaves first, the least recently used of them. A node that
    is evicted from the device stays in the tree if the host has room; one that
    is evicted from the host too is gone, as is all below it. A locked node is on
    the device, and its copy on the host stays.

    Nothing here depends on when a copy ends, so that all ranks decide alike.

    loaded_tokens: tokens that came back from the host so far.
    """

    def __init__(self, device: torch.device, pool: TieredKVCache) -> None:
        self._pool = pool
        self.loaded_tokens = 0
        super().__init__(device)

    def reset(self) -> None:
        super().reset()
        self._transfers = self._pool.open()
        self.host_pages = HostPages(self._pool.num_host_pages)
        self._host_queue = LruQueue(self._host_evictable)

    # -- what is found, and how it comes back --

    def match_prefix(self, input_ids: torch.Tensor) -> MatchResult:
        """The longest prefix on the device, and the longest on any tier."""
        handle = super().match_prefix(input_ids).cuda_handle
        assert isinstance(handle, RadixCacheHandle)
        node, length = handle.node, handle.cached_len
        while not _on_device(node):
            length -= node.length
            node = node.parent
        return MatchResult(RadixCacheHandle(length, node), handle)

    def load_prefix(
        self, handle: BaseCacheHandle, indices: torch.Tensor
    ) -> None:
        """Give the slots to what has none, from above to below, and read it."""
        assert isinstance(handle, RadixCacheHandle)
        nodes, node = [], handle.node
        while not _on_device(node):
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        slots = indices.split([node.length for node in nodes])
        for node, part in zip(nodes, slots, strict=True):
            self._place(node, part.clone())
        on_host = torch.cat([node.host for node in nodes])
        self._transfers.read(self._pages(indices), on_host)
        self.loaded_tokens += len(indices)

    def insert_prefix(
        self, input_ids: torch.Tensor, indices: torch.Tensor
    ) -> InsertResult:
        """As everywhere; what only the host has takes the slots that come."""
        known, handle = super().insert_prefix(input_ids, indices)
        assert isinstance(handle, RadixCacheHandle)
        node, end = handle.node, handle.cached_len
        while not node.is_root():
            start = end - node.length
            if not _on_device(node):
                self._place(node, indices[start:end].clone())
                known = start
            node, end = node.parent, start
        if self._pool.policy == "write_through":
            self._copy_path(handle.node)
        return InsertResult(known, handle)

    def _place(self, node: RadixTreeNode, slots: torch.Tensor) -> None:
        """Put a node on the device as well."""
        node.place(slots)
        if node.ref_count > 0:
            self.protected_size += node.length
        else:
            self.evictable_size += node.length
        self._enqueue(node)

    # -- off the device --

    def evict(self, size: int) -> torch.Tensor:
        if size > self.evictable_size:
            raise RuntimeError(
                f"{size} tokens to evict, only {self.evictable_size} are unlocked"
            )
        more = min(_AT_ONCE, self.evictable_size) if size else 0
        left = align_ceil(max(size, more), self.page_size)
        victims: list[tuple[RadixTreeNode, torch.Tensor]] = []
        while left > 0:
            node = self._next_victim()
            if node.length > left:
                node.split_at(node.length - left)
            victims.append((node, node.value))
            node.place(self.root_node.value)
            self.evictable_size -= node.length
            left -= node.length
            self._enqueue(node.parent)
        self._move_down(victims)
        slots = [self.root_node.value, *(slots for _, slots in victims)]
        return torch.cat(slots)

    def _move_down(
        self, victims: list[tuple[RadixTreeNode, torch.Tensor]]
    ) -> None:
        """Leave nodes that have left the device to the host, or drop them.

        victims: nodes and their slots, those below before those above.
        """
        # The slots are about to be given out, and copies may still read them.
        for node, _ in victims:
            if node.copied is not None:
                wait_event(node.copied)
        fresh: list[tuple[RadixTreeNode, torch.Tensor]] = []
        for node, slots in reversed(victims):
            if node.is_detached():
                continue  # to make room, or with a node above it
            if _on_host(node):
                continue
            if self._give_host_pages(node):
                fresh.append((node, slots))
            else:
                self._drop(node)
        event = self._copy(fresh)
        if event is not None:
            wait_event(event)
        # Not before: room for one of them is not made at the cost of another.
        for node, _ in victims:
            self._enqueue(node)

    def _evictable(self, node: RadixTreeNode) -> bool:
        return (
            _on_device(node)
            and node.ref_count == 0
            and not node.is_root()
            and not any(map(_on_device, node.children.values()))
        )

    # -- onto the host --

    def _copy_path(self, node: RadixTreeNode) -> None:
        """Copy what the host lacks of the path to a node, as far as it has room."""
        lacking = []
        while not node.is_root():
            if not _on_host(node):
                lacking.append(node)
            node = node.parent
        fresh = []
        for node in reversed(lacking):
            if not self._give_host_pages(node):
                break
            fresh.append((node, node.value))
        self._copy(fresh)
        for node in lacking:
            self._enqueue(node)

    def _copy(
        self, nodes: list[tuple[RadixTreeNode, torch.Tensor]]
    ) -> Event | None:
        """Write nodes, which have pages on both tiers, from these slots."""
        kept = [(node, slots) for node, slots in nodes if _on_host(node)]
        if not kept:
            return None
        slots = torch.cat([slots for _, slots in kept])
        on_host = torch.cat([node.host for node, _ in kept])
        event = self._transfers.write(self._pages(slots), on_host)
        for node, _ in kept:
            node.copied = event
        return event

    def _give_host_pages(self, node: RadixTreeNode) -> bool:
        """Take pages for a node from what was of use less; False if too few."""
        count = node.length // self.page_size
        if count > self.host_pages.num_pages:
            return False
        while self.host_pages.num_free < count:
            victim = self._host_queue.pop()
            if victim is None:
                return False
            self._release(victim)
        node.host = self.host_pages.allocate(count)
        return True

    def _release(self, node: RadixTreeNode) -> None:
        """Give up a node's pages on the host, and it too if it had no others."""
        self.host_pages.free(node.host)
        node.host = node.host[:0]
        if not _on_device(node):
            node.detach()
        self._enqueue(node.parent)

    def _drop(self, node: RadixTreeNode) -> None:
        """Take a node off the tree with all below it; none is on the device."""
        found = [node]
        for node in found:
            found.extend(node.children.values())
        for node in reversed(found):
            self._release(node)

    def _host_evictable(self, node: RadixTreeNode) -> bool:
        if not _on_host(node) or node.ref_count > 0:
            return False
        below = node.children.values()
        return not (any(map(_on_host, below)) if _on_device(node) else below)

    # -- both --

    def _enqueue(self, node: RadixTreeNode) -> None:
        super()._enqueue(node)
        self._host_queue.offer(node)

    def _pages(self, slots: torch.Tensor) -> torch.Tensor:
        """Whole pages of the device, int64, from the slots of all their tokens."""
        return (slots[:: self.page_size] // self.page_size).long()

    @property
    def numbers(self) -> dict[str, int]:
        """Pages in use on the host, and tokens that came back from there."""
        used = self.host_pages.num_pages - self.host_pages.num_free
        return {"host_pages": used, "loaded_tokens": self.loaded_tokens}

    def check_integrity(self) -> None:
        super().check_integrity()
        nodes = list(self._nodes())
        for node in nodes:
            _check_node(node, self.page_size)
            if self._host_evictable(node) and node not in self._host_queue:
                raise RuntimeError(
                    "a node could leave the host but is not in the queue"
                )
        held = torch.cat([_NOWHERE, *(node.host for node in nodes)])
        if len(held.unique()) != len(held):
            raise RuntimeError("a host page is in two nodes")
        free = self.host_pages.num_free
        if len(held) + free != self.host_pages.num_pages:
            raise RuntimeError(
                f"host pages do not add up: {free} free, {len(held)} in the "
                f"tree, {self.host_pages.num_pages} in all"
            )


_NOWHERE = torch.empty(0, dtype=torch.int64)


def _on_device(node: RadixTreeNode) -> bool:
    """Whether it has slots; the root counts as a node that has."""
    return len(node.value) > 0 or node.is_root()


def _on_host(node: RadixTreeNode) -> bool:
    return len(node.host) > 0


def _check_node(node: RadixTreeNode, page_size: int) -> None:
    if _on_device(node):
        if not _on_device(node.parent):
            raise RuntimeError("a node on the device is below one that is not")
    elif not _on_host(node):
        raise RuntimeError("a node has pages on no tier")
    elif node.ref_count > 0:
        raise RuntimeError("a node is locked but not on the device")
    if len(node.host) not in (0, node.length // page_size):
        raise RuntimeError("a node has host pages for some of its tokens only")
