"""Which rank this process is, of how many."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DistributedInfo:
    """rank: this process, from 0; size: how many share the model."""

    rank: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not one of {self.size}")

    def is_primary(self) -> bool:
        """Whether this is the rank that talks to the world."""
        return self.rank == 0


_tp_info: DistributedInfo | None = None


def set_tp_info(rank: int, size: int) -> None:
    """Say which rank this process is; before the first layer is made.

    Raises:
        RuntimeError: it has been said already, and differently.
    """
    global _tp_info
    info = DistributedInfo(rank, size)
    if _tp_info not in (None, info):
        raise RuntimeError(f"this process is {_tp_info} already, not {info}")
    _tp_info = info


def try_get_tp_info() -> DistributedInfo | None:
    """What has been said, None if nothing."""
    return _tp_info


def get_tp_info() -> DistributedInfo:
    """The rank of this process. One that nobody has told is alone."""
    return _tp_info or DistributedInfo(0, 1)


def clear_tp_info() -> None:
    """Forget what has been said, when the ranks have parted."""
    global _tp_info
    _tp_info = None
