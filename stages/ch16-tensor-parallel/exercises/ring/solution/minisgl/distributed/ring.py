"""A sum over ranks that only neighbours have to talk for."""

from __future__ import annotations

from typing import Protocol

import torch

from minisgl.distributed.impl import DistributedImpl


class Link(Protocol):
    """The two ends of a ring that a rank has."""

    def send(self, x: torch.Tensor) -> None:
        """A copy of x to the next rank."""

    def receive(self) -> torch.Tensor:
        """What the rank before has sent; waits for it."""


class RingImpl(DistributedImpl):
    """Rank r sends to rank (r + 1) % size and receives from (r - 1) % size.

    Each vector is cut into `size` parts. Every rank sends 2 (size - 1) parts,
    however many ranks there are: a part first travels round the ring and grows,
    then the sum travels round (Patarasuk and Yuan, 2009).
    """

    def __init__(self, rank: int, size: int, link: Link) -> None:
        self._rank, self._size, self._link = rank, size, link

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' x, in place, the same bits everywhere."""
        # Views of x, so that writing into a part is writing into x. With fewer
        # numbers than ranks some are empty.
        parts = list(x.view(-1).tensor_split(self._size))
        self._reduce_scatter(parts)
        self._all_gather_parts(parts)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        found = [x] * self._size
        for step in range(1, self._size):
            self._link.send(x)
            x = self._link.receive()
            found[(self._rank - step) % self._size] = x
        return torch.cat(found)

    def _reduce_scatter(self, parts: list[torch.Tensor]) -> None:
        """Add up in size - 1 steps, in place.

        In step 0 rank r sends part r. In every later step it sends the part
        that it has just added to. Afterwards part (r + 1) % size of rank r is
        the sum over all ranks.
        """
        for step in range(self._size - 1):
            self._link.send(parts[(self._rank - step) % self._size])
            into = parts[(self._rank - step - 1) % self._size]
            into += self._link.receive()

    def _all_gather_parts(self, parts: list[torch.Tensor]) -> None:
        """Pass the sums on in size - 1 steps, until every rank has them all.

        Rank r begins with its part (r + 1) % size, in place as before.
        """
        for step in range(self._size - 1):
            self._link.send(parts[(self._rank - step + 1) % self._size])
            parts[(self._rank - step) % self._size].copy_(self._link.receive())
