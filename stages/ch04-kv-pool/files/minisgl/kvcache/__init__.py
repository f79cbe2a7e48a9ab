"""Where keys and values live."""

from __future__ import annotations

import torch

from minisgl.kvcache.base import BaseKVCachePool
from minisgl.kvcache.mha_pool import MHAKVCache
from minisgl.models import ModelConfig

__all__ = ["BaseKVCachePool", "MHAKVCache", "create_kvcache_pool"]


def create_kvcache_pool(
    model_config: ModelConfig,
    num_pages: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> BaseKVCachePool:
    """The pool that a model of this configuration needs."""
    return MHAKVCache(
        num_kv_heads=model_config.num_kv_heads,
        num_layers=model_config.num_layers,
        head_dim=model_config.head_dim,
        num_pages=num_pages,
        page_size=page_size,
        dtype=dtype,
        device=device,
    )
