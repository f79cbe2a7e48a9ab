"""What the ways to quantise a weight have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch

from minisgl.kernel.quant_linear import quant_linear
from minisgl.layers.linear import LinearMethod, _LinearTPImpl
from minisgl.quant.config import QuantConfig
from minisgl.utils import div_ceil


class QuantMethod(LinearMethod):
    """Linears whose weight has few bits a number, and a scale for each group.

    What is meant is value * scale. One object serves all linears of a model;
    each has its `weight`, the values as `pack` makes them, and its
    `weight_scale`, float32 [out, groups].

    value_dtype: of the values.
    """

    value_dtype: ClassVar[torch.dtype]

    def __init__(self, config: QuantConfig) -> None:
        self.config = config

    def prepare(self, op: _LinearTPImpl) -> None:
        """Give a linear without weights yet the shapes of this method."""
        rows, columns = op.weight.shape
        groups = div_ceil(columns, self._group_size(columns))
        kind, device = self.value_dtype, op.weight.device
        op.weight = self.pack(
            torch.empty(rows, columns, dtype=kind, device=device)
        )
        op.weight_scale = torch.empty(
            rows, groups, dtype=torch.float32, device=device
        )
        op._method = self

    def quantize(
        self, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[out, in] of any float dtype -> `weight` and `weight_scale`."""
        rows, columns = weight.shape
        groups = weight.float().view(rows, -1, self._group_size(columns))
        scale = self._scale(groups)
        # A group of zeros has none, and any will do.
        scale = torch.where(scale == 0, 1.0, scale)
        values = self._round(groups / scale).view(rows, columns)
        return self.pack(values), scale.squeeze(2)

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        """[out, in], a number each -> the form in which a linear has them."""
        return values

    def multiply(
        self, op: _LinearTPImpl, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        out = self._product(x, op.weight, op.weight_scale)
        return out if bias is None else out + bias

    def _product(
        self, x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor:
        """x [T, in] -> [T, out]; only the weight is quantised."""
        return quant_linear(x, weight, scale, self._group_size(x.shape[1]))

    def _group_size(self, columns: int) -> int:
        """Weights to a scale in rows of so many."""
        return self.config.group_size or columns

    @abstractmethod
    def _scale(self, groups: torch.Tensor) -> torch.Tensor:
        """float32 [out, groups, n] -> [out, groups, 1]; 0 where all are 0."""

    @abstractmethod
    def _round(self, scaled: torch.Tensor) -> torch.Tensor:
        """Weights over their scale -> the nearest values."""
