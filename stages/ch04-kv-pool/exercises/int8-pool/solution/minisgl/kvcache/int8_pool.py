"""A KV pool of 8 bits a number: a quarter of float32, half of bfloat16."""

from __future__ import annotations

import torch

from minisgl.kvcache.base import BaseKVCachePool

__all__ = ["Int8KVCache", "dequantise", "quantise"]


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes [..., d] and float32 scales [..., 1]: x is about codes * scales.

    Each row of d numbers has its own scale, by which its largest magnitude
    becomes 127; codes are rounded to the nearest. A row of zeros gives zeros.
    """
    wide = x.float()
    scales = wide.abs().amax(-1, keepdim=True) / 127
    divisors = torch.where(scales > 0, scales, 1.0)
    return (wide / divisors).round().to(torch.int8), scales


def dequantise(
    codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """About what `quantise` was given, in `dtype`."""
    return (codes.float() * scales).to(dtype)


class Int8KVCache(BaseKVCachePool):
    """As `MHAKVCache`, with a scale for every token and head.

    What is read is made on the spot: writing to it changes nothing.
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
        shape = (2, num_layers, num_pages, page_size, num_kv_heads)
        self._codes = torch.zeros(
            (*shape, head_dim), dtype=torch.int8, device=device
        )
        self._scales = torch.zeros((*shape, 1), device=device)
        self._dtype = dtype
        self._num_layers = num_layers

    @property
    def nbytes(self) -> int:
        """Memory of the pool."""
        return self._codes.nbytes + self._scales.nbytes

    def k_cache(self, index: int) -> torch.Tensor:
        return self._read(0, index)

    def v_cache(self, index: int) -> torch.Tensor:
        return self._read(1, index)

    def _read(self, which: int, layer: int) -> torch.Tensor:
        codes, scales = self._codes[which, layer], self._scales[which, layer]
        return dequantise(codes, scales, self._dtype)

    def store_kv(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        out_loc: torch.Tensor,
        layer_id: int,
    ) -> None:
        for which, x in enumerate((k, v)):
            codes = self._codes[which, layer_id].flatten(0, 1)
            scales = self._scales[which, layer_id].flatten(0, 1)
            heads = x.view(len(x), *codes.shape[1:])
            codes[out_loc], scales[out_loc] = quantise(heads)

    @property
    def device(self) -> torch.device:
        return self._codes.device

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def num_layers(self) -> int:
        return self._num_layers
