"""Weights in the layout that a CPU multiplies by, made once.

A matrix product on a CPU first copies the weight into blocks that suit its
vector registers. For a prompt that copy is small beside the product; in a
decode step of a few rows it costs as much as the product itself.
"""

from __future__ import annotations

import os
import platform

import torch

from minisgl.layers.base import BaseOP
from minisgl.layers.embedding import ParallelLMHead
from minisgl.layers.linear import PLAIN, LinearMethod, _LinearTPImpl

# The layout suits any number of rows; it is chosen for about so many.
_ROWS = 256

_KEPT = 128
"""Kernels that are remembered: one for each shape and number of rows."""


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN, which torch brings along, has such products here."""
    if device.type != "cpu" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] on the CPU -> the same, opaque: only `packed_linear` reads it."""
    # Else it is 1,024, of about a megabyte each; read at the first product.
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, str(_KEPT))
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(
        weight, _ROWS
    )
    return packed


def packed_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """As F.linear, of a weight from `pack_weight`."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
        x, weight, bias, "none", [], ""
    )
    return result


class PackedMethod(LinearMethod):
    """The weight as `pack_weight` makes it."""

    def multiply(
        self, op: _LinearTPImpl, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return packed_linear(x, op.weight, bias)


def pack_linears(op: BaseOP) -> None:
    """Pack the weight of every linear below `op` and of its head, in place.

    One that is quantised is left as it is, in a layout of its own.
    """
    for _, part in op._public():
        if isinstance(part, ParallelLMHead):
            _pack_head(part)
        elif isinstance(part, _LinearTPImpl):
            if part._method is PLAIN:
                part.weight = pack_weight(part.weight)
                part._method = PackedMethod()
        elif isinstance(part, BaseOP):
            pack_linears(part)


def _pack_head(head: ParallelLMHead) -> None:
    # A tied table stays as it is too: the embedding reads single rows of it.
    table = head if head._tied is None else head._tied
    head.weight = pack_weight(table.weight)
    head._tied = None
    head._multiply = packed_linear
