"""Backends for layers of experts; the names alone do not load torch."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from minisgl.utils import Registry, init_logger
from minisgl.utils.lazy import lazy_names

if TYPE_CHECKING:
    import torch

    from minisgl.moe.base import BaseMoeBackend

__all__ = [
    "SUPPORTED_MOE_BACKENDS",
    "BaseMoeBackend",
    "create_moe_backend",
    "validate_moe_backend",
]

__getattr__ = lazy_names(__name__, {"base": ["BaseMoeBackend"]})

logger = init_logger(__name__)


class MoeBackendCreator(Protocol):
    def __call__(self) -> BaseMoeBackend: ...


SUPPORTED_MOE_BACKENDS = Registry[MoeBackendCreator]("MoE backend")


@SUPPORTED_MOE_BACKENDS.register("torch")
def create_torch_moe_backend() -> BaseMoeBackend:
    from minisgl.moe.torch_backend import TorchMoe

    return TorchMoe()


@SUPPORTED_MOE_BACKENDS.register("fused")
def create_fused_moe_backend() -> BaseMoeBackend:
    from minisgl.moe.fused import FusedMoe

    return FusedMoe()


def validate_moe_backend(backend: str) -> str:
    """The name as it is, once it is known to be one.

    Raises:
        ValueError: a name that is not supported.
    """
    if backend != "auto":
        SUPPORTED_MOE_BACKENDS.assert_supported(backend)
    return backend


def create_moe_backend(
    backend: str, device: torch.device | None = None
) -> BaseMoeBackend:
    """Make a backend; ``auto`` is Triton's on a GPU and torch's elsewhere.

    Raises:
        ValueError: not supported, or not on this machine.
    """
    if backend == "auto":
        backend = _choose(device)
    if backend == "fused":
        _check_fused(device)
    return SUPPORTED_MOE_BACKENDS[backend]()


def _choose(device: torch.device | None) -> str:
    if device is None or device.type != "cuda":
        return "torch"
    if find_spec("triton") is None:
        logger.warning("triton is not installed: experts run one by one")
        return "torch"
    return "fused"


def _check_fused(device: torch.device | None) -> None:
    from minisgl.kernel.moe_impl import is_interpreted

    if find_spec("triton") is None:
        raise ValueError(
            "MoE backend 'fused' needs triton: pip install triton, or use torch"
        )
    if device is not None and device.type != "cuda" and not is_interpreted():
        raise ValueError("MoE backend 'fused' needs a CUDA device; use torch")
