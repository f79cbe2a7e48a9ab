"""The prefix cache that remembers nothing."""

from __future__ import annotations

import torch

from minisgl.kvcache.base import (
    BaseCacheHandle,
    BasePrefixCache,
    InsertResult,
    MatchResult,
    SizeInfo,
)


class NaiveCacheHandle(BaseCacheHandle):
    """Always the empty prefix."""

    empty_tensor: torch.Tensor

    def __init__(self) -> None:
        super().__init__(cached_len=0)

    def get_matched_indices(self) -> torch.Tensor:
        return self.empty_tensor


class NaivePrefixCache(BasePrefixCache):
    """Never matches, keeps nothing, and so has nothing to evict."""

    def __init__(self, device: torch.device) -> None:
        empty = torch.empty(0, dtype=torch.int32, device=device)
        NaiveCacheHandle.empty_tensor = empty
        self._empty = empty

    def lock_handle(
        self, handle: BaseCacheHandle, unlock: bool = False
    ) -> None:
        pass

    def match_prefix(self, input_ids: torch.Tensor) -> MatchResult:
        return MatchResult(NaiveCacheHandle())

    def insert_prefix(
        self, input_ids: torch.Tensor, indices: torch.Tensor
    ) -> InsertResult:
        return InsertResult(0, NaiveCacheHandle())

    def evict(self, size: int) -> torch.Tensor:
        if size > 0:
            raise RuntimeError(
                f"{size} tokens to evict from a cache without any"
            )
        return self._empty

    def reset(self) -> None:
        pass

    @property
    def size_info(self) -> SizeInfo:
        return SizeInfo(0, 0)

    def check_integrity(self) -> None:
        pass
