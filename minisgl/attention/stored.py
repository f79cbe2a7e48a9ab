"""Backends for layers that store keys and values on their way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from minisgl.core import Batch


class AttendsStored(ABC):
    """What such a backend does beside the interface of all.

    Its `forward` is to store, and then this. A layer whose kernel has keys and
    values in its registers anyway writes them to the pool itself.
    """

    @abstractmethod
    def attend(
        self, q: torch.Tensor, layer_id: int, batch: Batch
    ) -> torch.Tensor:
        """Attend to what the pool holds: q [T, heads, dim] -> the same shape.

        Keys and values of the new tokens are there, at `batch.out_loc`.
        """
