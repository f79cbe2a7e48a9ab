"""Default dtype by scope, and which dtype a checkpoint is to run in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

_NAMES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@contextmanager
def torch_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make `dtype` the default for new floating tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def resolve_dtype(requested: str | torch.dtype, hf_config: Any) -> torch.dtype:
    """The dtype to run in; ``auto`` is what config.json states.

    What is stored does not matter: a checkpoint may hold bfloat16 and state
    float32. One that states nothing runs in float32, which loses nothing.

    Raises:
        ValueError: a name that is not a supported dtype.
    """
    if isinstance(requested, torch.dtype):
        return requested
    if requested == "auto":
        stated = getattr(hf_config, "dtype", None)
        if stated is None or isinstance(stated, torch.dtype):
            return stated or torch.float32
        requested = str(stated).removeprefix("torch.")
    if requested not in _NAMES:
        known = ", ".join(["auto", *_NAMES])
        raise ValueError(
            f"dtype {requested!r} is not supported; use one of {known}"
        )
    return _NAMES[requested]


def nvtx_annotate(
    name: str, layer_id_field: str | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: a profiler of NVIDIA's shows each call as a range of that name.

    layer_id_field: an attribute of the method's object whose value replaces the
        braces in `name`.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        if torch.version.cuda is None:
            return function

        @wraps(function)
        def annotated(*args: P.args, **kwargs: P.kwargs) -> T:
            label = name
            if layer_id_field is not None:
                label = name.format(getattr(args[0], layer_id_field))
            with torch.cuda.nvtx.range(label):
                return function(*args, **kwargs)

        return annotated

    return decorate
