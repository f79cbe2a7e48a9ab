"""Matrix products, named after the place they have in a decoder layer.

Over several ranks a product is cut along its output (a rank computes some
columns of y) or along its input (a rank computes a part of every sum). This is
Megatron-LM's scheme (Shoeybi et al., arXiv:1909.08053): cut the first of two
products along its output and the second along its input, and one sum over the
ranks is all that is said between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F

from minisgl.distributed import DistributedCommunicator, get_tp_info
from minisgl.layers.base import BaseOP
from minisgl.utils import div_even

Multiply = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor
]
"""x, weight, bias -> x W^T + b; a device may have a better one than torch's."""


class LinearMethod(ABC):
    """How a linear keeps its weight and multiplies by it."""

    @abstractmethod
    def multiply(
        self, op: _LinearTPImpl, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """x [..., local_isize] -> x W^T + bias, [..., local_osize]."""


class PlainMethod(LinearMethod):
    """The weight as it is, [out, in], in the dtype of x."""

    def multiply(
        self, op: _LinearTPImpl, x: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return F.linear(x, op.weight, bias)


PLAIN = PlainMethod()


class _LinearTPImpl(BaseOP):
    """y = x W^T + b, with W [out, in] as checkpoints store it.

    full_isize, full_osize: of the whole product.
    local_isize, local_osize: of this rank's part, which is what it has.
    weight_scale: there only with a method that needs one.
    """

    weight_scale: torch.Tensor

    def __init__(
        self,
        full_isize: int,
        full_osize: int,
        local_isize: int,
        local_osize: int,
        has_bias: bool,
    ) -> None:
        self._full_size = full_osize, full_isize
        self._local_size = local_osize, local_isize
        self.weight = torch.empty(local_osize, local_isize)
        self.bias = torch.empty(local_osize) if has_bias else None
        self._method: LinearMethod = PLAIN

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., local_isize] -> [..., local_osize]."""
        return self._method.multiply(self, x, self.bias)


class LinearReplicated(_LinearTPImpl):
    """A product that is never split, a router for example."""

    def __init__(
        self, input_size: int, output_size: int, has_bias: bool
    ) -> None:
        super().__init__(
            input_size, output_size, input_size, output_size, has_bias
        )


class LinearColParallelMerged(_LinearTPImpl):
    """Several products of the same input in one: gate and up of an MLP.

    One large product costs less than several small ones; their weights are
    stacked along the output. Each of them is cut along the output.
    """

    def __init__(
        self, input_size: int, output_sizes: list[int], has_bias: bool
    ) -> None:
        size = get_tp_info().size
        local = sum(div_even(one, size) for one in output_sizes)
        full = sum(output_sizes)
        super().__init__(input_size, full, input_size, local, has_bias)


class LinearQKVMerged(_LinearTPImpl):
    """Queries, keys and values in one product: [T, hidden] -> [T, q + k + v].

    A rank has some of the heads. With fewer kv heads than ranks, neighbours
    have the same one.
    """

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        num_qo_heads: int,
        num_kv_heads: int,
        has_bias: bool,
    ) -> None:
        size = get_tp_info().size
        queries = div_even(num_qo_heads, size)
        pairs = div_even(num_kv_heads, size, allow_replicate=True)
        full = (num_qo_heads + 2 * num_kv_heads) * head_dim
        local = (queries + 2 * pairs) * head_dim
        super().__init__(hidden_size, full, hidden_size, local, has_bias)


class LinearRowParallel(_LinearTPImpl):
    """From the wide middle of an MLP back to the hidden size.

    Cut along the input: every rank has a part of each sum.
    """

    def __init__(
        self, input_size: int, output_size: int, has_bias: bool
    ) -> None:
        local = div_even(input_size, get_tp_info().size)
        super().__init__(input_size, output_size, local, output_size, has_bias)
        self._comm = DistributedCommunicator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's [..., local_isize] -> [..., out], of all ranks together."""
        y = self._comm.all_reduce(self._method.multiply(self, x, None))
        # Whole on every rank, so that it must not be in the sum.
        return y if self.bias is None else y + self.bias


class LinearOProj(LinearRowParallel):
    """From the heads back to the hidden size, cut as `LinearRowParallel` is."""
