"""Where keys and values live, and which prefixes are remembered.

The names of the prefix caches alone do not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

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
    from minisgl.kvcache.tiered_pool import TieredKVCache
    from minisgl.models import ModelConfig

__all__ = [
    "HOST_CACHE_POLICIES",
    "SUPPORTED_CACHE_MANAGER",
    "BaseCacheHandle",
    "BaseKVCachePool",
    "BasePrefixCache",
    "HostTier",
    "InsertResult",
    "MHAKVCache",
    "MatchResult",
    "SizeInfo",
    "TieredKVCache",
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
        "tiered_pool": ["TieredKVCache"],
    },
)


HOST_CACHE_POLICIES = ("write_through", "write_back")
"""When a prefix is copied to the host: once computed, or when it is evicted."""


class HostTier(NamedTuple):
    """A pool on the host: GiB of all ranks together, and its policy."""

    gib: float
    policy: str


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

    pool: BaseKVCachePool = MHAKVCache(
        num_kv_heads=model_config.num_kv_heads,
        num_layers=model_config.num_kv_layers,
        head_dim=model_config.head_dim,
        num_pages=num_pages,
        page_size=page_size,
        dtype=dtype,
        device=device,
    )
    tier = model_config.host_tier
    if tier is None:
        return pool
    from minisgl.distributed import get_tp_info
    from minisgl.kvcache.host_pool import pages_within
    from minisgl.kvcache.tiered_pool import TieredKVCache

    num_host_pages = pages_within(pool, tier.gib, get_tp_info().size)
    return TieredKVCache(pool, num_host_pages, tier.policy)


@SUPPORTED_CACHE_MANAGER.register("naive")
def create_naive_cache(device: torch.device) -> BasePrefixCache:
    from minisgl.kvcache.naive_cache import NaivePrefixCache

    return NaivePrefixCache(device)


@SUPPORTED_CACHE_MANAGER.register("radix")
def create_radix_cache(device: torch.device) -> BasePrefixCache:
    from minisgl.attention.stateful import current_states
    from minisgl.core import get_global_ctx
    from minisgl.kvcache.hiradix_cache import HiRadixPrefixCache
    from minisgl.kvcache.hybrid_cache import HybridRadixCache
    from minisgl.kvcache.radix_cache import RadixPrefixCache
    from minisgl.kvcache.tiered_pool import TieredKVCache

    if (states := current_states()) is not None:
        return HybridRadixCache(device, states)
    pool = getattr(get_global_ctx(), "kv_cache", None)
    if isinstance(pool, TieredKVCache):
        return HiRadixPrefixCache(device, pool)
    return RadixPrefixCache(device)


def create_prefix_cache(device: torch.device, type: str) -> BasePrefixCache:
    """A cache of that name; ``auto`` is the last one registered.

    The page size is the current context's, and so are the pool of states, if the
    model needs one, and a tier on the host, if there is one.
    """
    if type == "auto":
        type = SUPPORTED_CACHE_MANAGER.supported_names()[-1]
    return SUPPORTED_CACHE_MANAGER[type](device)
