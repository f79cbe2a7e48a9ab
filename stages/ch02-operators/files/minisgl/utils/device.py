"""The one place that knows whether the engine runs on a GPU."""

from __future__ import annotations

import torch


def pick_device(name: str) -> torch.device:
    """``auto`` takes CUDA when there is one; otherwise what the name says.

    Raises:
        ValueError: the device is unknown or not on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] not in ("cpu", "cuda"):
        raise ValueError(
            f"device {name!r} is not supported; use auto, cpu or cuda"
        )
    if name != "cpu" and not torch.cuda.is_available():
        raise ValueError(
            f"device {name!r}: no CUDA device here; use --device cpu"
        )
    return torch.device(name)
