"""Which prompt beginnings somebody has, and which of several replicas."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator

from minisgl.deploy.blocks import Blocks


class PrefixLRU:
    """A bounded set of prefixes, with those that were used last.

    A block's number stands for all that comes before it, so a set of numbers is
    a radix tree without pointers. What is removed first is what was used
    longest ago; of one prefix the end goes before the beginning, as in a tree
    that loses leaves only.

    capacity: blocks, at least 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self._capacity = capacity
        self._used: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def __iter__(self) -> Iterator[int]:
        return iter(self._used)

    def match(self, blocks: Blocks) -> int:
        """How many blocks from the first on are in it."""
        for count, block in enumerate(blocks):
            if block not in self._used:
                return count
        return len(blocks)

    def add(self, blocks: Blocks) -> tuple[list[int], list[int]]:
        """Use a prefix now, its end first; what came in, and what had to go."""
        new: list[int] = []
        # The last one first, so that it is the oldest of them.
        for block in reversed(blocks[: self._capacity]):
            if block in self._used:
                self._used.move_to_end(block)
            else:
                self._used[block] = None
                new.append(block)
        excess = max(0, len(self._used) - self._capacity)
        gone = [self._used.popitem(last=False)[0] for _ in range(excess)]
        return new, gone


class PrefixIndex:
    """For each of several replicas, what it has been asked lately."""

    def __init__(self) -> None:
        self._known: dict[str, PrefixLRU] = {}
        self._holders: defaultdict[int, set[str]] = defaultdict(set)

    def join(self, name: str, capacity: int) -> None:
        """A replica that can hold so many blocks, empty as yet."""
        self.leave(name)
        self._known[name] = PrefixLRU(capacity)

    def leave(self, name: str) -> None:
        """Forget all about one; fine if it is not known."""
        for block in self._known.pop(name, ()):
            self._discard(block, name)

    def match(self, name: str, blocks: Blocks) -> int:
        """How many of the blocks a replica knows, from the first on."""
        return self._known[name].match(blocks)

    def longest(self, blocks: Blocks) -> set[str]:
        """Who knows most of them; empty if nobody knows the first."""
        found: set[str] = set()
        for block in blocks:
            holders = self._holders.get(block)
            if not holders:
                break
            found = holders
        return found

    def add(self, name: str, blocks: Blocks) -> None:
        """A replica has been sent these."""
        new, gone = self._known[name].add(blocks)
        for block in new:
            self._holders[block].add(name)
        for block in gone:
            self._discard(block, name)

    def _discard(self, block: int, name: str) -> None:
        holders = self._holders[block]
        holders.discard(name)
        if not holders:
            del self._holders[block]
