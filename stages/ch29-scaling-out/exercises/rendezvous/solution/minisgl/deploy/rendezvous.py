"""A policy that computes who is to answer, and keeps nothing."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from math import ceil
from random import Random

from minisgl.deploy.blocks import Blocks
from minisgl.deploy.policy import ForgetfulPolicy


def weight(name: str, key: int) -> int:
    """How much a replica is the right one for a key, from 0 to 2**64 - 1.

    The same in every process, and for another name or key anything else.
    """
    text = f"{name} {key}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


class RendezvousPolicy(ForgetfulPolicy):
    """Who has the largest weight for the prompt's beginning, if not too busy.

    Rendezvous hashing (Thaler and Ravishankar, 1998), with bounded loads
    (Mirrokni, Thorup and Zadimoghaddam, 2016, arXiv:1608.01350).

    depth: the beginning is the last of the first so many blocks.
    bound: with the request nobody may have more than this many times what
        each would have if all had equally many, rounded up. At least 1.
    """

    def __init__(
        self, rng: Random | None = None, depth: int = 40, bound: float = 2.0
    ) -> None:
        super().__init__(rng)
        self._depth, self._bound = depth, bound

    def choose(self, blocks: Blocks, loads: Mapping[str, int]) -> str:
        key = blocks[: self._depth][-1] if blocks else 0
        most = ceil(self._bound * (sum(loads.values()) + 1) / len(loads))
        # Not empty: whoever has least has no more than the average.
        found = [name for name, load in loads.items() if load < most]
        return max(found, key=lambda name: weight(name, key))
