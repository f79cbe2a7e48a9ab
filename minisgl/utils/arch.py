"""Which generation of GPU this is."""

from __future__ import annotations

from functools import cache

import torch


@cache
def _get_torch_cuda_version() -> tuple[int, int] | None:
    """Compute capability of the current GPU, (9, 0) for an H200, or None."""
    if not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_capability()


def is_arch_supported(major: int, minor: int = 0) -> bool:
    """Whether there is a GPU of that compute capability or a later one."""
    found = _get_torch_cuda_version()
    return found is not None and found >= (major, minor)


def is_sm90_supported() -> bool:
    """Whether the GPU is a Hopper (H100, H200) or later."""
    return is_arch_supported(9)


def is_sm100_supported() -> bool:
    """Whether the GPU is a Blackwell (B200) or later."""
    return is_arch_supported(10)
