"""How ranks add up and put together what each has computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from minisgl.distributed.info import clear_tp_info, get_tp_info

# torch 2.13 has given it the first of these names.
_all_gather: Any = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)


@dataclass
class DistributedImpl(ABC):
    """A way to communicate. All ranks call the same things in the same order."""

    @abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x, on every rank; x may be overwritten."""

    @abstractmethod
    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """All ranks' x [n, ...], in the order of ranks: [size * n, ...]."""


@dataclass
class TorchDistributedImpl(DistributedImpl):
    """The default group of torch.distributed: NCCL on GPUs, gloo on CPUs."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if get_tp_info().size > 1:
            dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        size = get_tp_info().size
        if size == 1:
            return x
        result = x.new_empty((size * len(x), *x.shape[1:]))
        _all_gather(result, x.contiguous())
        return result


class DistributedCommunicator:
    """What layers hold; the last plugin is the one in use."""

    plugins: ClassVar[list[DistributedImpl]] = [TorchDistributedImpl()]

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """As `DistributedImpl.all_reduce`."""
        return self.plugins[-1].all_reduce(x)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """As `DistributedImpl.all_gather`."""
        return self.plugins[-1].all_gather(x)


def destroy_distributed() -> None:
    """Leave the group of ranks; this process is then alone again."""
    if get_tp_info().size > 1 and dist.is_initialized():
        dist.destroy_process_group()
    clear_tp_info()
