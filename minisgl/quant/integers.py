"""Weights as integers: of 8 bits, or of 4."""

from __future__ import annotations

from typing import ClassVar

import torch

from minisgl.kernel.quant_linear import pack_int4
from minisgl.quant.base import QuantMethod


class Int8Method(QuantMethod):
    """Integers from -128 to 127, evenly spaced."""

    value_dtype = torch.int8
    lowest: ClassVar[int] = -128

    def _scale(self, groups: torch.Tensor) -> torch.Tensor:
        # There is one more negative number than there are positive ones. The
        # largest weight becomes it, for the scale may be negative, too.
        place = groups.abs().argmax(2, keepdim=True)
        return groups.gather(2, place) / self.lowest

    def _round(self, scaled: torch.Tensor) -> torch.Tensor:
        whole = scaled.round().clamp(self.lowest, -self.lowest - 1)
        return whole.to(self.value_dtype)


class Int4Method(Int8Method):
    """Integers from -8 to 7, two a byte."""

    lowest = -8

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        return pack_int4(values)
