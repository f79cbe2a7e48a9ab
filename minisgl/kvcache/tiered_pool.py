"""A KV pool with a larger one below it, in the memory of the host."""

from __future__ import annotations

import torch

from minisgl.kvcache.base import BaseKVCachePool
from minisgl.kvcache.host_pool import host_buffer
from minisgl.kvcache.transfer import Transfers


class TieredKVCache(BaseKVCachePool):
    """The pool of the device as layers see it, which waits for what comes.

    num_host_pages: pages on the host, each as large as one of the device.
    policy: of `HOST_CACHE_POLICIES`, for the prefix cache that decides.
    """

    def __init__(
        self,
        pool: BaseKVCachePool,
        num_host_pages: int,
        policy: str,
    ) -> None:
        self._pool = pool
        self.num_host_pages = num_host_pages
        self.policy = policy
        self._transfers: Transfers | None = None

    def open(self) -> Transfers:
        """The way to the host and back; whoever opens it has it alone.

        Only then memory of the host is taken: a prefix cache may have no use
        for it.
        """
        if self._transfers is None:
            host = host_buffer(self._pool, self.num_host_pages)
            self._transfers = Transfers(self._pool, host)
        self._transfers.reset()
        return self._transfers

    def k_cache(self, index: int) -> torch.Tensor:
        self._arrive(index)
        return self._pool.k_cache(index)

    def v_cache(self, index: int) -> torch.Tensor:
        self._arrive(index)
        return self._pool.v_cache(index)

    def _arrive(self, layer: int) -> None:
        if self._transfers is not None:
            self._transfers.arrive(layer)

    def store_kv(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        out_loc: torch.Tensor,
        layer_id: int,
    ) -> None:
        # To other pages than those that come, which are whole.
        self._pool.store_kv(k, v, out_loc, layer_id)

    @property
    def device(self) -> torch.device:
        return self._pool.device

    @property
    def dtype(self) -> torch.dtype:
        return self._pool.dtype

    @property
    def num_layers(self) -> int:
        return self._pool.num_layers
