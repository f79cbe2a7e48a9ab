"""Libraries of GPU kernels: which are here, and what they run on.

Nothing of this package needs them to be imported; torch can do what they do.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch

_DEVICES: tuple[str, ...] = ("cuda",)
_DTYPES: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)


def takes_device(device: torch.device) -> bool:
    """Whether the libraries have kernels for tensors of that device."""
    return device.type in _DEVICES


def takes_dtype(dtype: torch.dtype) -> bool:
    """Whether they have them for that dtype: tensor cores want halves."""
    return dtype in _DTYPES


class MissingLibrary(ImportError):
    """A library is not installed, or what is installed does not load."""


@cache
def _try_import(name: str) -> ModuleType | str:
    try:
        return import_module(name)
    except (ImportError, OSError) as error:
        return f"{name} cannot be imported ({error})"


def load_library(name: str) -> ModuleType:
    """Import a library once; a failure is remembered too.

    Raises:
        MissingLibrary: with the reason.
    """
    found = _try_import(name)
    if isinstance(found, str):
        raise MissingLibrary(found)
    return found


def has_library(name: str) -> bool:
    """Whether `load_library` would give it."""
    return not isinstance(_try_import(name), str)
