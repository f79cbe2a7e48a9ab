"""Where an operator of FlashInfer takes the place of the one in torch."""

from __future__ import annotations

from types import ModuleType

import torch

from minisgl.utils.libraries import (
    has_library,
    load_library,
    takes_device,
    takes_dtype,
)


def flashinfer_on(device: torch.device) -> ModuleType | None:
    """The library, if it has kernels for that device and is installed."""
    if not takes_device(device) or not has_library("flashinfer"):
        return None
    return load_library("flashinfer")


def flashinfer_for(x: torch.Tensor) -> ModuleType | None:
    """The library, if its operators take `x`; None where torch must compute.

    They take halves whose rows a kernel reads in pieces of 16 bytes.
    """
    if not takes_dtype(x.dtype) or x.stride(-1) != 1:
        return None
    if x.shape[-1] * x.element_size() % 16 != 0:
        return None
    return flashinfer_on(x.device)
