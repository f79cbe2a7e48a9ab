"""A prefix cache in the simplest form that shares: one dict entry for a page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minisgl.kvcache import (
    BaseCacheHandle,
    BasePrefixCache,
    InsertResult,
    MatchResult,
    SizeInfo,
)

Key = tuple[int, ...]
"""All tokens from the first one to the end of a page."""


@dataclass(frozen=True)
class DictHandle(BaseCacheHandle):
    keys: Sequence[Key]
    slots: torch.Tensor

    def get_matched_indices(self) -> torch.Tensor:
        return self.slots


class DictCache(BasePrefixCache):
    """Slow, as a key repeats all tokens before it, and easy to see through.

    `log` has the calls that change what is locked or known.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.pages: dict[Key, torch.Tensor] = {}
        self.locks: Counter[Key] = Counter()
        self.log: list[str] = []

    def _keys(self, ids: torch.Tensor) -> list[Key]:
        tokens, size = tuple(ids.tolist()), self.page_size
        return [tokens[:end] for end in range(size, len(tokens) + 1, size)]

    def _handle(self, keys: Sequence[Key]) -> DictHandle:
        slots = [self.pages[key] for key in keys]
        empty = torch.empty(0, dtype=torch.int32)
        return DictHandle(
            len(keys) * self.page_size, keys, torch.cat([empty, *slots])
        )

    def lock_handle(
        self, handle: BaseCacheHandle, unlock: bool = False
    ) -> None:
        assert isinstance(handle, DictHandle)
        self.log.append(f"{'unlock' if unlock else 'lock'} {handle.cached_len}")
        for key in handle.keys:
            assert key in self.pages, "a handle outlived its pages"
            self.locks[key] += -1 if unlock else 1
            assert self.locks[key] >= 0, "more unlocks than locks"

    def match_prefix(self, input_ids: torch.Tensor) -> MatchResult:
        known = []
        for key in self._keys(input_ids):
            if key not in self.pages:
                break
            known.append(key)
        return MatchResult(self._handle(known))

    def insert_prefix(
        self, input_ids: torch.Tensor, indices: torch.Tensor
    ) -> InsertResult:
        assert len(input_ids) == len(indices)
        assert len(input_ids) % self.page_size == 0
        known = self.match_prefix(input_ids).cuda_handle.cached_len
        keys = self._keys(input_ids)
        for key in keys[known // self.page_size :]:
            self.pages[key] = indices[len(key) - self.page_size : len(key)]
        self.log.append(f"insert {len(input_ids)}, {known} known")
        return InsertResult(known, self._handle(keys))

    def evict(self, size: int) -> torch.Tensor:
        taken = [torch.empty(0, dtype=torch.int32)]
        for _ in range(0, size, self.page_size):
            parents = {key[: -self.page_size] for key in self.pages}
            free = [
                k for k in self.pages if k not in parents and not self.locks[k]
            ]
            if not free:
                raise RuntimeError(
                    f"{size} tokens to evict, fewer are unlocked"
                )
            taken.append(self.pages.pop(free[0]))
        return torch.cat(taken)

    def reset(self) -> None:
        if self.size_info.protected_size:
            raise RuntimeError("a prefix is locked")
        self.pages.clear()

    @property
    def size_info(self) -> SizeInfo:
        held = sum(1 for key in self.pages if self.locks[key]) * self.page_size
        return SizeInfo(len(self.pages) * self.page_size - held, held)

    def check_integrity(self) -> None:
        slots = [slot for page in self.pages.values() for slot in page.tolist()]
        if len(set(slots)) != len(slots):
            raise RuntimeError("a slot stands for two tokens")
