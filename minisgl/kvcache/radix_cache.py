"""A prefix cache in a radix tree (RadixAttention, arXiv:2312.07104)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import torch

from minisgl.core import get_global_ctx
from minisgl.kvcache.base import (
    BaseCacheHandle,
    BasePrefixCache,
    InsertResult,
    MatchResult,
    SizeInfo,
)
from minisgl.kvcache.radix_tree import (
    RadixCacheHandle,
    RadixTreeNode,
    get_key_fn,
    match_pages,
    next_tic,
)
from minisgl.utils import align_ceil, align_down

__all__ = ["RadixCacheHandle", "RadixPrefixCache", "RadixTreeNode"]


class RadixPrefixCache(BasePrefixCache):
    """Keeps every inserted prefix until its place is needed.

    Evicts the least recently used leaf first. Leaves that may be evicted stand
    in a heap. An entry may be out of date: the node was locked, grew children
    or was used again since; that is found out when it comes up.
    """

    def __init__(self, device: torch.device) -> None:
        self.page_size = get_global_ctx().page_size
        self._key_fn = get_key_fn(self.page_size)
        self._device = device
        self.protected_size = 0
        self.reset()

    def reset(self) -> None:
        if self.protected_size > 0:
            raise RuntimeError("a prefix is locked: its request still runs")
        self.root_node = RadixTreeNode(self._key_fn)
        empty = torch.empty(0, dtype=torch.int32)
        self.root_node.set_key_value(empty, empty.to(self._device))
        self.evictable_size = 0
        self._queue: list[tuple[int, RadixTreeNode]] = []

    def match_prefix(self, input_ids: torch.Tensor) -> MatchResult:
        node, length = self._tree_walk(input_ids)
        return MatchResult(RadixCacheHandle(length, node))

    def insert_prefix(
        self, input_ids: torch.Tensor, indices: torch.Tensor
    ) -> InsertResult:
        length = align_down(len(input_ids), self.page_size)
        node, known = self._tree_walk(input_ids[:length])
        if known < length:
            leaf = RadixTreeNode(self._key_fn)
            # Clones: a slice would keep the whole prompt and row alive.
            leaf.set_key_value(
                input_ids[known:length].clone(), indices[known:length].clone()
            )
            leaf.set_parent(node)
            self.evictable_size += leaf.length
            self._enqueue(leaf)
            node = leaf
        return InsertResult(known, RadixCacheHandle(length, node))

    def lock_handle(
        self, handle: BaseCacheHandle, unlock: bool = False
    ) -> None:
        assert isinstance(handle, RadixCacheHandle)
        node = handle.node
        while not node.is_root():
            if unlock:
                node.ref_count -= 1
                assert node.ref_count >= 0, "unlocked more often than locked"
                if node.ref_count == 0:
                    self._move(len(node.value))
                    self._enqueue(node)
            else:
                if node.ref_count == 0:
                    self._move(-len(node.value))
                node.ref_count += 1
            node = node.parent

    def _move(self, size: int) -> None:
        """Turn `size` tokens from protected to evictable; back if negative."""
        self.evictable_size += size
        self.protected_size -= size

    def evict(self, size: int) -> torch.Tensor:
        if size > self.evictable_size:
            raise RuntimeError(
                f"{size} tokens to evict, only {self.evictable_size} are unlocked"
            )
        left, freed = align_ceil(size, self.page_size), [self.root_node.value]
        while left > 0:
            node = self._next_victim()
            kept = max(node.length - left, 0)
            freed.append(node.truncate(kept) if kept else node.value)
            left -= len(freed[-1])
            self.evictable_size -= len(freed[-1])
            if not kept:
                node.detach()
                node = node.parent
            self._enqueue(node)
        return torch.cat(freed)

    def _evictable(self, node: RadixTreeNode) -> bool:
        return node.is_leaf() and node.ref_count == 0 and not node.is_root()

    def _enqueue(self, node: RadixTreeNode) -> None:
        """Let a node wait for eviction, if it may be evicted."""
        if self._evictable(node) and not node.queued:
            heapq.heappush(self._queue, (node.timestamp, node))
            node.queued = True

    def _next_victim(self) -> RadixTreeNode:
        while True:
            tic, node = heapq.heappop(self._queue)
            node.queued = False
            if tic == node.timestamp and self._evictable(node):
                return node
            self._enqueue(node)

    def _tree_walk(self, input_ids: torch.Tensor) -> tuple[RadixTreeNode, int]:
        """Follow `input_ids` down, in whole pages; return (last node, length).

        A node that is matched in part is split, so that the match ends one.
        All nodes on the way were of use now.
        """
        node, length, tic = self.root_node, 0, next_tic()
        while len(input_ids) - length >= self.page_size:
            rest = input_ids[length:]
            child = node.children.get(self._key_fn(rest))
            if child is None:
                break
            matched = match_pages(child, rest, self.page_size)
            node = child if matched == child.length else child.split_at(matched)
            node.timestamp = tic
            length += matched
            if node is not child:
                break
        return node, length

    @property
    def size_info(self) -> SizeInfo:
        return SizeInfo(self.evictable_size, self.protected_size)

    def _nodes(self) -> Iterator[RadixTreeNode]:
        """All nodes but the root."""
        todo = list(self.root_node.children.values())
        while todo:
            node = todo.pop()
            yield node
            todo.extend(node.children.values())

    def check_integrity(self) -> None:
        nodes = list(self._nodes())
        locked = sum(len(node.value) for node in nodes if node.ref_count > 0)
        unlocked = sum(len(node.value) for node in nodes if node.ref_count == 0)
        if (unlocked, locked) != self.size_info:
            raise RuntimeError(
                f"the tree holds {unlocked} unlocked and {locked} locked tokens, "
                f"the counters say {tuple(self.size_info)}"
            )
        for node in nodes:
            if node.length == 0 or node.length % self.page_size:
                raise RuntimeError(
                    f"a node of {node.length} tokens is no whole page"
                )
            below = [child.ref_count for child in node.children.values()]
            if node.ref_count < max(below, default=0):
                raise RuntimeError("a node has fewer locks than one below it")
            if self._evictable(node) and not node.queued:
                raise RuntimeError(
                    "a leaf could be evicted but is not in the queue"
                )
        slots = torch.cat(
            [self.root_node.value, *(node.value for node in nodes)]
        )
        if len(slots.unique()) != len(slots):
            raise RuntimeError("a slot is in the tree twice")
