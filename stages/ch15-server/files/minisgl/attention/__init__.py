"""Attention backends by name; the names alone do not load torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from minisgl.utils import Registry
from minisgl.utils.lazy import lazy_names

if TYPE_CHECKING:
    from minisgl.attention.base import BaseAttnBackend, BaseAttnMetadata
    from minisgl.models import ModelConfig

__all__ = [
    "SUPPORTED_ATTENTION_BACKENDS",
    "BaseAttnBackend",
    "BaseAttnMetadata",
    "create_attention_backend",
    "validate_attn_backend",
]

__getattr__ = lazy_names(
    __name__, {"base": ["BaseAttnBackend", "BaseAttnMetadata"]}
)


class BackendCreator(Protocol):
    def __call__(self, config: ModelConfig) -> BaseAttnBackend: ...


SUPPORTED_ATTENTION_BACKENDS = Registry[BackendCreator]("attention backend")


@SUPPORTED_ATTENTION_BACKENDS.register("torch")
def create_torch_backend(config: ModelConfig) -> BaseAttnBackend:
    from minisgl.attention.torch_backend import TorchBackend

    return TorchBackend(config)


def validate_attn_backend(backend: str, allow_auto: bool = True) -> str:
    """The name as it is, once it is known to be one.

    Raises:
        ValueError: a name that is not supported.
    """
    if not (allow_auto and backend == "auto"):
        SUPPORTED_ATTENTION_BACKENDS.assert_supported(backend)
    return backend


def create_attention_backend(
    backend: str, config: ModelConfig
) -> BaseAttnBackend:
    """Make a backend; the KV pool must already be in the global context."""
    name = "torch" if backend == "auto" else backend
    return SUPPORTED_ATTENTION_BACKENDS[name](config)
