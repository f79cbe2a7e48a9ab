"""Puts the stand-ins in place of the GPU libraries, which then run on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch

from minisgl.utils import arch, libraries
from tests.fakes import flash_attn, flash_attn_interface, flashinfer

STAND_INS: dict[str, ModuleType] = {
    "flashinfer": flashinfer,
    "flash_attn": flash_attn,
    "flash_attn_interface": flash_attn_interface,
}
_ABSENT = "sgl_kernel.flash_attn"


@contextmanager
def stand_ins(*names: str, hopper: bool = True) -> Iterator[None]:
    """Inside, the CPU counts as a GPU that has the libraries `names` and no other.

    Args:
        names: of STAND_INS; none given means all.
        hopper: whether that GPU is of the one generation for flash-attn 3.
    """
    wanted = names or tuple(STAND_INS)
    seen = {name: sys.modules.get(name) for name in (*STAND_INS, _ABSENT)}
    found = arch._get_torch_cuda_version
    before = libraries._DEVICES, libraries._DTYPES
    try:
        for name in seen:
            # None makes an import fail.
            module = STAND_INS.get(name) if name in wanted else None
            sys.modules[name] = module  # type: ignore[assignment]
        arch._get_torch_cuda_version = lambda: (9, 0) if hopper else (8, 0)
        libraries._DEVICES = ("cuda", "cpu")
        libraries._DTYPES = (torch.float32, *before[1])
        libraries._try_import.cache_clear()
        yield
    finally:
        for name, module in seen.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        arch._get_torch_cuda_version = found
        libraries._DEVICES, libraries._DTYPES = before
        libraries._try_import.cache_clear()
