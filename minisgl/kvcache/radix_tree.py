"""The nodes of a radix tree over tokens, and the handle of a path in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import torch

from minisgl.kernel import fast_compare_key
from minisgl.kvcache.base import BaseCacheHandle
from minisgl.utils import align_down
from minisgl.utils.device import Event

KEY_FN: TypeAlias = Callable[[torch.Tensor], int | tuple[int, ...]]

_clock = count()

_NO_PAGES = torch.empty(0, dtype=torch.int64)


def get_key_fn(page_size: int) -> KEY_FN:
    """What tells the children of a node apart: the first page of their tokens."""
    if page_size == 1:
        return lambda ids: int(ids[0])
    return lambda ids: tuple(ids[:page_size].tolist())


def next_tic() -> int:
    """A time that only moves when it is asked for, so that no two are equal."""
    return next(_clock)


class RadixTreeNode:
    """A run of tokens that follows its parent's, with their KV slots.

    A cache with a second tier keeps nodes that have no slots, but pages on the
    host; or that have both.

    children: by `KEY_FN` of their tokens.
    ref_count: locks on this node or below it.
    timestamp: when it was last of use, in tics.
    queued: whether it stands in the cache's queue for eviction.
    host: its pages on the host, int64 [pages] on the CPU; empty if it has none.
    copied: when they are written; None if they never were.
    """

    def __init__(self, key_fn: KEY_FN, tic: int | None = None) -> None:
        self.key_fn = key_fn
        self.timestamp = next_tic() if tic is None else tic
        self.children: dict[int | tuple[int, ...], RadixTreeNode] = {}
        self.ref_count = 0
        self.queued = False
        self._parent: RadixTreeNode | None = None
        self._key = torch.empty(0, dtype=torch.int32)
        self._value = self._key
        self.host = _NO_PAGES
        self.copied: Event | None = None

    def set_key_value(self, key: torch.Tensor, value: torch.Tensor) -> None:
        """key: int32 [n] on the CPU, tokens; value: int32 [n], their slots.

        Without slots the value is empty.
        """
        assert len(value) in (0, len(key))
        self._key, self._value = key, value

    def place(self, slots: torch.Tensor) -> None:
        """Give it slots, int32 [n], or take them away with an empty tensor."""
        assert len(slots) in (0, self.length)
        self._value = slots

    def set_parent(self, parent: RadixTreeNode) -> None:
        """Hang this node, whose key is set, below another."""
        self._parent = parent
        parent.children[self.key_fn(self._key)] = self

    def detach(self) -> None:
        """Take this node out of its parent."""
        del self.parent.children[self.key_fn(self._key)]

    def is_detached(self) -> bool:
        """Whether its parent does not know it any more."""
        return self.parent.children.get(self.key_fn(self._key)) is not self

    @property
    def length(self) -> int:
        return len(self._key)

    @property
    def parent(self) -> RadixTreeNode:
        assert self._parent is not None, "the root has no parent"
        return self._parent

    @property
    def value(self) -> torch.Tensor:
        return self._value

    def is_root(self) -> bool:
        return self._parent is None

    def is_leaf(self) -> bool:
        return not self.children

    def get_match_len(self, input_ids: torch.Tensor) -> int:
        """How many leading tokens of `input_ids` are this node's."""
        return fast_compare_key(self._key, input_ids)

    def split_at(self, pos: int) -> RadixTreeNode:
        """Cut in two and return the new upper node, which has `pos` tokens.

        This node keeps the rest, so that handles that end here still do.
        """
        assert 0 < pos < self.length
        upper = RadixTreeNode(self.key_fn, self.timestamp)
        pages = len(self.host) * pos // self.length
        upper.host, self.host = self.host[:pages], self.host[pages:]
        upper.copied = self.copied
        upper.set_key_value(self._key[:pos], self._value[:pos])
        upper.set_parent(self.parent)
        upper.ref_count = self.ref_count
        self.set_key_value(self._key[pos:], self._value[pos:])
        self.set_parent(upper)
        return upper

    def truncate(self, length: int) -> torch.Tensor:
        """Keep the first `length` tokens; return the slots of the others."""
        rest = self._value[length:]
        self.set_key_value(self._key[:length], self._value[:length])
        return rest

    def __lt__(self, other: RadixTreeNode) -> bool:
        return self.timestamp < other.timestamp


@dataclass(frozen=True)
class RadixCacheHandle(BaseCacheHandle):
    """The path from the root to `node`."""

    node: RadixTreeNode

    def get_matched_indices(self) -> torch.Tensor:
        values, node = [], self.node
        while not node.is_root():
            values.append(node.value)
            node = node.parent
        if not values:
            return self.node.value
        return torch.cat(values[::-1])


def match_pages(node: RadixTreeNode, ids: torch.Tensor, page_size: int) -> int:
    """As `get_match_len`, in whole pages."""
    return align_down(node.get_match_len(ids), page_size)
