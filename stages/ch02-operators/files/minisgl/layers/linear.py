"""Matrix products, named after the place they have in a decoder layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from minisgl.layers.base import BaseOP

Multiply = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor
]
"""x, weight, bias -> x W^T + b; a device may have a better one than torch's."""


class _Linear(BaseOP):
    """y = x W^T + b, with W [out, in] as checkpoints store it."""

    def __init__(
        self, input_size: int, output_size: int, has_bias: bool
    ) -> None:
        self.weight = torch.empty(output_size, input_size)
        self.bias = torch.empty(output_size) if has_bias else None
        self._multiply: Multiply = F.linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]."""
        return self._multiply(x, self.weight, self.bias)


class LinearReplicated(_Linear):
    """A product that is never split, a router for example."""


class LinearColParallelMerged(_Linear):
    """Several products of the same input in one: gate and up of an MLP.

    One large product costs less than several small ones; their weights are
    stacked along the output.
    """

    def __init__(
        self, input_size: int, output_sizes: list[int], has_bias: bool
    ) -> None:
        super().__init__(input_size, sum(output_sizes), has_bias)


class LinearQKVMerged(_Linear):
    """Queries, keys and values in one product: [T, hidden] -> [T, q + k + v]."""

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        num_qo_heads: int,
        num_kv_heads: int,
        has_bias: bool,
    ) -> None:
        heads = num_qo_heads + 2 * num_kv_heads
        super().__init__(hidden_size, heads * head_dim, has_bias)


class LinearOProj(_Linear):
    """From the heads back to the hidden size."""


class LinearRowParallel(_Linear):
    """From the wide middle of an MLP back to the hidden size."""
