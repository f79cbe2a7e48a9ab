"""Token ids on the host to which a token is added every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class GrowingIds:
    """An attribute of tensors, int32 [n] on the CPU, that `grow` makes longer.

    Each object's ids lie in an array with room to spare, doubled when it is
    full. To put a number there takes less than half the time that a longer
    tensor takes; one is made when the attribute is read.
    """

    def __init__(self, name: str) -> None:
        self._ids, self._count = f"_{name}", f"_{name}_count"

    def __get__(self, obj: Any, owner: type) -> torch.Tensor:
        ids = getattr(obj, self._ids)[: getattr(obj, self._count)]
        return torch.from_numpy(ids)

    def __set__(self, obj: Any, ids: torch.Tensor) -> None:
        assert ids.device.type == "cpu", "ids of the host live on the host"
        setattr(obj, self._ids, ids.to(torch.int32).numpy())
        setattr(obj, self._count, len(ids))

    def grow(self, obj: Any, token: int) -> None:
        """Add one id to the object's."""
        ids, count = getattr(obj, self._ids), getattr(obj, self._count)
        if count == len(ids):
            ids = np.resize(ids, 2 * count + 1)
            setattr(obj, self._ids, ids)
        ids[count] = token
        setattr(obj, self._count, count + 1)
