"""Quantised weights: which linears have them, and how checkpoints hold them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from minisgl.layers import BaseOP, LinearReplicated
from minisgl.layers.linear import _LinearTPImpl
from minisgl.models.checkpoint import WeightFiles
from minisgl.quant import QuantConfig
from minisgl.quant.base import QuantMethod
from minisgl.utils import div_ceil

# What published checkpoints call a scale, and the values if they are packed.
_SCALES = ("weight_scale", "weight_scale_inv")
_PACKED = "weight_packed"
# Of no use here: activations get their scales when they are there.
_UNUSED = ("weight_shape", "input_scale")


def named_linears(
    op: BaseOP, path: str = ""
) -> Iterator[tuple[str, _LinearTPImpl]]:
    """All linears below `op` that are cut over ranks, with their names.

    A router is not: it is small, and a little more error chooses other experts.
    """
    for name, part in op._public():
        here = f"{path}.{name}" if path else name
        if isinstance(part, _LinearTPImpl):
            if not isinstance(part, LinearReplicated):
                yield here, part
        elif isinstance(part, BaseOP):
            yield from named_linears(part, here)


def quantized_linears(op: BaseOP) -> dict[str, _LinearTPImpl]:
    """Those of them that are quantised, by name."""
    return {
        name: linear
        for name, linear in named_linears(op)
        if isinstance(linear._method, QuantMethod)
    }


class QuantizedFiles(WeightFiles):
    """The files of a published checkpoint, in one form for all kinds of them.

    A linear has a `weight`, [out, in] of values that are not packed, and a
    `weight_scale`, float32 [out, groups].

    Raises:
        FileNotFoundError, ValueError: as for `WeightFiles`; a scale of another
            shape than the configuration says.
    """

    def __init__(self, folder: Path, config: QuantConfig) -> None:
        super().__init__(folder)
        self._config = config
        self._stored: dict[str, str] = {}
        for name in super().names():
            path, _, kind = name.rpartition(".")
            if kind in _SCALES:
                self._stored[f"{path}.weight_scale"] = name
            elif kind == _PACKED:
                self._stored[f"{path}.weight"] = name
            elif kind not in _UNUSED:
                self._stored[name] = name

    def names(self) -> list[str]:
        return list(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def read(self, name: str) -> torch.Tensor:
        found = super().read(self._stored[name])
        if name.endswith(".weight_scale"):
            weight = name.removesuffix("_scale")
            return self._widen(weight, found)
        if self._stored[name].endswith(_PACKED):
            bits = 4 if self._config.format == "int4" else 8
            return _unpack(found, self.shape(name)[1], bits)
        return found

    def shape(self, name: str) -> list[int]:
        stored = self._stored[name]
        if name.endswith(".weight_scale"):
            rows, columns = self.shape(name.removesuffix("_scale"))
            return [rows, div_ceil(columns, self._config.group_size or columns)]
        if stored.endswith(_PACKED):
            meant = stored.removesuffix(_PACKED) + "weight_shape"
            found: list[int] = super().read(meant).tolist()
            return found
        return super().shape(stored)

    def read_part(
        self, name: str, dim: int, start: int, stop: int
    ) -> torch.Tensor:
        if self._stored[name] == name and not name.endswith(".weight_scale"):
            return super().read_part(name, dim, start, stop)
        return self.read(name).narrow(dim, start, stop - start)

    def _widen(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        """The stored scale of a weight, of any strategy -> [out, groups]."""
        rows, columns = self.shape(name)
        together = self._config.group_rows or rows
        blocks = div_ceil(rows, together)
        groups = div_ceil(columns, self._config.group_size or columns)
        if scale.numel() != blocks * groups:
            raise ValueError(
                f"weight {name!r} of {[rows, columns]} needs {blocks} x "
                f"{groups} scales, and the checkpoint has {list(scale.shape)}"
            )
        each = scale.float().view(blocks, groups)
        return each.repeat_interleave(together, 0)[:rows]


def _unpack(packed: torch.Tensor, columns: int, bits: int) -> torch.Tensor:
    """int32 [out, words], the first number in the lowest bits -> int8 [out, in].

    A number is stored with half of its range added.
    """
    places = torch.arange(0, 32, bits)
    numbers = packed.unsqueeze(2) >> places & (1 << bits) - 1
    values: torch.Tensor = numbers - (1 << bits - 1)
    return values.flatten(1)[:, :columns].to(torch.int8)
