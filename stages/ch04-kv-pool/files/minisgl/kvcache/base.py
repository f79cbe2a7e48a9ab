"""The interface of a KV pool."""

from __future__ import annotations

from abc import ABC, abstractmethod

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
