"""Where keys and values live, and which prefixes are remembered.

The names of the prefix caches alone do not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from minisgl.utils import Registry
from minisgl.utils.lazy import lazy_names

if TYPE_CHECKING:
    import torch

    from minisgl.kvcache.base import (
        BaseCacheHandle,
        BaseKVCachePool,
        BasePrefixCache,
        InsertResult,
        MatchResult,
        SizeInfo,
    )
    from minisgl.kvcache.mha_pool import MHAKVCache
    from minisgl.models import ModelConfig

__all__ = [
    "SUPPORTED_CACHE_MANAGER",
    "BaseCacheHandle",
    "BaseKVCachePool",
    "BasePrefixCache",
    "InsertResult",
    "MHAKVCache",
    "MatchResult",
    "SizeInfo",
    "create_kvcache_pool",
    "create_prefix_cache",
]

__getattr__ = lazy_names(
    __name__,
    {
        "base": [
            "BaseCacheHandle",
            "BaseKVCachePool",
            "BasePrefixCache",
            "InsertResult",
            "MatchResult",
            "SizeInfo",
        ],
        "mha_pool": ["MHAKVCache"],
    },
)


class CacheManagerCreator(Protocol):
    def __call__(self, device: torch.device) -> BasePrefixCache: ...


SUPPORTED_CACHE_MANAGER = Registry[CacheManagerCreator]("cache type")


def create_kvcache_pool(
    model_config: ModelConfig,
    num_pages: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> BaseKVCachePool:
    """The pool that a model of this configuration needs."""
    from minisgl.kvcache.mha_pool import MHAKVCache

    return MHAKVCache(
        num_kv_heads=model_config.num_kv_heads,
        num_layers=model_config.num_kv_layers,
        head_dim=model_config.head_dim,
        num_pages=num_pages,
        page_size=page_size,
        dtype=dtype,
        device=device,
    )


@SUPPORTED_CACHE_MANAGER.register("naive")
def create_naive_cache(device: torch.device) -> BasePrefixCache:
    from minisgl.kvcache.naive_cache import NaivePrefixCache

    return NaivePrefixCache(device)


@SUPPORTED_CACHE_MANAGER.register("radix")
def create_radix_cache(device: torch.device) -> BasePrefixCache:
    from minisgl.attention.stateful import current_states
    from minisgl.kvcache.hybrid_cache import HybridRadixCache
    from minisgl.kvcache.radix_cache import RadixPrefixCache

    if (states := current_states()) is not None:
        return HybridRadixCache(device, states)
    return RadixPrefixCache(device)


def create_prefix_cache(device: torch.device, type: str) -> BasePrefixCache:
    """A cache of that name; ``auto`` is the last one registered.

    The page size is the current context's, and so is the pool of states, if the
    model needs one.
    """
    if type == "auto":
        type = SUPPORTED_CACHE_MANAGER.supported_names()[-1]
    return SUPPORTED_CACHE_MANAGER[type](device)
