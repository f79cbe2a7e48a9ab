"""Which attention backend can serve a model here, and why another cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from minisgl.models import ModelConfig
from minisgl.utils import init_logger
from minisgl.utils.libraries import takes_device, takes_dtype

logger = init_logger(__name__)


@dataclass(frozen=True)
class Demand:
    """What a backend is asked for, as far as a library may refuse it."""

    config: ModelConfig
    page_size: int
    dtype: torch.dtype
    device: torch.device


def why_not(backend: str, demand: Demand) -> str | None:
    """Why this backend, of a single name, cannot serve; None if it can."""
    if backend not in _RULES:
        return None
    if not takes_device(demand.device):
        return f"it needs a GPU, not device {demand.device.type!r}; use torch"
    kept_in = demand.config.kv_cache_dtype
    if kept_in != "auto":
        return (
            f"it reads keys and values as they are computed, not in {kept_in}; "
            "use torch"
        )
    if not takes_dtype(demand.dtype):
        return (
            f"its kernels compute in bfloat16 or float16, not in "
            f"{str(demand.dtype).removeprefix('torch.')}; use torch"
        )
    return _RULES[backend](demand)


def choose_attn_backend(backend: str, demand: Demand) -> str:
    """The name itself if it can serve; for ``auto`` the best that can.

    backend: a name, ``PREFILL,DECODE``, or ``auto``.

    Raises:
        ValueError: one of the names cannot serve; the reason is told.
    """
    if backend == "auto":
        return _best(demand)
    for name in backend.split(","):
        if (reason := why_not(name, demand)) is not None:
            raise ValueError(
                f"attention backend {name!r} cannot be used: {reason}"
            )
    return backend


def _best(demand: Demand) -> str:
    if not takes_device(demand.device):
        return "torch"
    from minisgl.attention.fa import find_library

    usable = [n for n in ("fi", "fa") if why_not(n, demand) is None]
    if usable == ["fi", "fa"] and find_library().version == 3:
        return "fa,fi"
    if usable:
        return usable[0]
    logger.warning(
        "the attention backend is torch, which is slow on a GPU; fi cannot "
        f"be used: {why_not('fi', demand)}"
    )
    return "torch"


def _fi(demand: Demand) -> str | None:
    from minisgl.attention.fi import why_not

    return why_not(demand)


def _fa(demand: Demand) -> str | None:
    from minisgl.attention.fa import why_not

    return why_not(demand)


_RULES: dict[str, Callable[[Demand], str | None]] = {"fi": _fi, "fa": _fa}
