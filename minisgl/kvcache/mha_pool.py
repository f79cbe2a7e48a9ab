"""The KV pool of multi-head and grouped-query attention."""

from __future__ import annotations

import torch

from minisgl.kernel import store_cache
from minisgl.kvcache.base import BaseKVCachePool


class MHAKVCache(BaseKVCachePool):
    """One tensor for all layers, cut into pages of `page_size` tokens.

    Memory: 2 * num_layers * num_pages * page_size * num_kv_heads * head_dim
    elements, taken once. This is the paged KV cache of vLLM (Kwon et al.,
    arXiv:2309.06180).

    dtype: of the elements. In float8 what is larger than 448 becomes 448.
    """

    def __init__(
        self,
        num_kv_heads: int,
        num_layers: int,
        head_dim: int,
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (2, num_layers, num_pages, page_size, num_kv_heads, head_dim)
        # Zeros, not garbage: a kernel may read all of a page, and what it masks
        # still enters a product, where NaN * 0 is NaN. Linux gives zero pages
        # no memory before they are written.
        self._buffer = torch.zeros(shape, dtype=dtype, device=device)
        self._slots = self._buffer.flatten(2, 3)
        self._num_layers = num_layers

    def k_cache(self, index: int) -> torch.Tensor:
        return self._buffer[0, index]

    def v_cache(self, index: int) -> torch.Tensor:
        return self._buffer[1, index]

    def store_kv(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        out_loc: torch.Tensor,
        layer_id: int,
    ) -> None:
        keys, values = self._slots[:, layer_id]
        store_cache(keys, values, out_loc, self._narrowed(k), self._narrowed(v))

    def _narrowed(self, x: torch.Tensor) -> torch.Tensor:
        """x in the dtype of the pool."""
        if x.dtype == self.dtype:
            return x
        # Not every torch does it by itself: some make NaN of what is too large.
        limit = torch.finfo(self.dtype).max
        return x.clamp(-limit, limit).to(self.dtype)

    @property
    def device(self) -> torch.device:
        return self._buffer.device

    @property
    def dtype(self) -> torch.dtype:
        return self._buffer.dtype

    @property
    def num_layers(self) -> int:
        return self._num_layers
