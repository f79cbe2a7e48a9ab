"""The interfaces of a KV pool and of a cache of prefixes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch


class BaseKVCachePool(ABC):
    """Keys and values of all requests, in pages that any request may hold."""

    @abstractmethod
    def k_cache(self, index: int) -> torch.Tensor:
        """Keys of layer `index`: [num_pages, page_size, kv_heads, head_dim]."""

    @abstractmethod
    def v_cache(self, index: int) -> torch.Tensor:
        """Values of layer `index`, shaped as the keys."""

    @abstractmethod
    def store_kv(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        out_loc: torch.Tensor,
        layer_id: int,
    ) -> None:
        """Write k and v [T, kv_heads * head_dim] to the slots out_loc [T].

        Slot s is place s % page_size of page s // page_size.
        """

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @property
    @abstractmethod
    def num_layers(self) -> int: ...


@dataclass(frozen=True)
class BaseCacheHandle(ABC):
    """A prefix that a cache holds; keeps nothing alive unless it is locked.

    cached_len: its length in tokens, whole pages.
    """

    cached_len: int

    @abstractmethod
    def get_matched_indices(self) -> torch.Tensor:
        """The KV slots of the prefix, int32 [cached_len] on the device."""


class SizeInfo(NamedTuple):
    """Tokens a cache holds: those it could give back, and those it may not."""

    evictable_size: int
    protected_size: int

    @property
    def total_size(self) -> int:
        return self.evictable_size + self.protected_size


class InsertResult(NamedTuple):
    """What became of an insertion.

    cached_len: leading tokens that the cache held already; it keeps its own
        slots for them, and the inserted ones are the caller's to free.
    handle: the prefix as the cache holds it now. Slots past its end were not
        taken and remain the caller's.
    """

    cached_len: int
    handle: BaseCacheHandle


class MatchResult(NamedTuple):
    """What is known of a prompt.

    cuda_handle: the longest known prefix, by its slots on the device.
    host_handle: the same and what follows on the host, if the cache has a tier
        there. It has no slots before `load_prefix` gives it some.
    """

    cuda_handle: BaseCacheHandle
    host_handle: BaseCacheHandle | None = None


class BasePrefixCache(ABC):
    """Remembers which slots hold the keys and values of which tokens.

    Token ids are int32 on the CPU, slots int32 on the device. All lengths are
    in tokens, and only whole pages are matched, kept and given back.
    """

    @abstractmethod
    def lock_handle(
        self, handle: BaseCacheHandle, unlock: bool = False
    ) -> None:
        """Protect a prefix from eviction; every lock needs its own unlock."""

    @abstractmethod
    def match_prefix(self, input_ids: torch.Tensor) -> MatchResult:
        """The longest prefix of `input_ids` here; lock it to keep it."""

    def load_prefix(
        self, handle: BaseCacheHandle, indices: torch.Tensor
    ) -> None:
        """Bring what a prefix has on the host to the slots `indices`.

        handle: a locked `host_handle`. The next forward copies the pages and
        waits for them; slots are whole pages, for all that is not on the device.
        """
        raise TypeError(f"{type(self).__name__} holds nothing on the host")

    @abstractmethod
    def insert_prefix(
        self, input_ids: torch.Tensor, indices: torch.Tensor
    ) -> InsertResult:
        """Offer the slots `indices` of the tokens `input_ids`, equally long."""

    def keep_states(
        self, handle: BaseCacheHandle, input_ids: torch.Tensor
    ) -> None:
        """Remember the states that the holder of `handle` has saved.

        input_ids: its tokens, which have just been inserted. Caches of keys and
        values have nothing to remember.
        """
        return

    @abstractmethod
    def evict(self, size: int) -> torch.Tensor:
        """Give up unlocked slots, at least `size` of them, and return them.

        Raises:
            RuntimeError: fewer than `size` are unlocked.
        """

    @abstractmethod
    def reset(self) -> None:
        """Forget everything; the slots are then the caller's.

        Raises:
            RuntimeError: something is locked.
        """

    @property
    @abstractmethod
    def size_info(self) -> SizeInfo: ...

    @property
    def numbers(self) -> dict[str, int]:
        """What there is to count beside tokens on the device, by name."""
        return {}

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise RuntimeError when the books do not balance."""
