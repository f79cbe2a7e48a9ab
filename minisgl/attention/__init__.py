"""Attention backends by name; the names alone do not load torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from minisgl.utils import Registry
from minisgl.utils.lazy import lazy_names

if TYPE_CHECKING:
    from minisgl.attention.base import (
        BaseAttnBackend,
        BaseAttnMetadata,
        HybridBackend,
    )
    from minisgl.attention.choice import Demand, choose_attn_backend
    from minisgl.models import ModelConfig

__all__ = [
    "SUPPORTED_ATTENTION_BACKENDS",
    "BaseAttnBackend",
    "BaseAttnMetadata",
    "Demand",
    "HybridBackend",
    "choose_attn_backend",
    "create_attention_backend",
    "validate_attn_backend",
]

__getattr__ = lazy_names(
    __name__,
    {
        "base": ["BaseAttnBackend", "BaseAttnMetadata", "HybridBackend"],
        "choice": ["Demand", "choose_attn_backend"],
    },
)


class BackendCreator(Protocol):
    def __call__(self, config: ModelConfig) -> BaseAttnBackend: ...


SUPPORTED_ATTENTION_BACKENDS = Registry[BackendCreator]("attention backend")


@SUPPORTED_ATTENTION_BACKENDS.register("torch")
def create_torch_backend(config: ModelConfig) -> BaseAttnBackend:
    from minisgl.attention.torch_backend import TorchBackend

    return TorchBackend(config)


@SUPPORTED_ATTENTION_BACKENDS.register("fi")
def create_fi_backend(config: ModelConfig) -> BaseAttnBackend:
    from minisgl.attention.fi import FlashInferBackend

    return FlashInferBackend(config)


@SUPPORTED_ATTENTION_BACKENDS.register("fa")
def create_fa_backend(config: ModelConfig) -> BaseAttnBackend:
    from minisgl.attention.fa import FlashAttentionBackend

    return FlashAttentionBackend(config)


def validate_attn_backend(backend: str, allow_auto: bool = True) -> str:
    """The name as it is, once it is known to be one, or two: ``fa,fi``.

    Raises:
        ValueError: a name that is not supported, or more than two.
    """
    if allow_auto and backend == "auto":
        return backend
    names = backend.split(",")
    SUPPORTED_ATTENTION_BACKENDS.assert_supported(names)
    if len(names) > 2:
        raise ValueError(
            f"attention backend {backend!r}: give one name, or two, the first "
            "for prefill and the second for decode"
        )
    return backend


def create_attention_backend(
    backend: str, config: ModelConfig
) -> BaseAttnBackend:
    """Make a backend; the KV pool must already be in the global context.

    Raises:
        ValueError: it cannot serve this model, pool or device.
    """
    from minisgl.attention.base import HybridBackend
    from minisgl.attention.choice import Demand, choose_attn_backend
    from minisgl.core import get_global_ctx

    ctx = get_global_ctx()
    pool = ctx.kv_cache
    demand = Demand(config, ctx.page_size, pool.dtype, pool.device)
    names = choose_attn_backend(backend, demand).split(",")
    made = {n: SUPPORTED_ATTENTION_BACKENDS[n](config) for n in names}
    prefill, decode = made[names[0]], made[names[-1]]
    return prefill if prefill is decode else HybridBackend(prefill, decode)
