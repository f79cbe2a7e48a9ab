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
