"""Which replica gets a request: at random, by load, by what it knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from random import Random

from minisgl.deploy.blocks import Blocks
from minisgl.deploy.prefixes import PrefixIndex
from minisgl.utils.registry import Registry


class Policy(ABC):
    """Chooses; it is told who joins and who leaves."""

    def __init__(self, rng: Random | None = None) -> None:
        self._rng = rng or Random()

    @abstractmethod
    def join(self, name: str, capacity: int) -> None:
        """A replica whose KV pool holds so many blocks, empty as yet."""

    @abstractmethod
    def leave(self, name: str) -> None:
        """A replica that has gone, with all it knew."""

    @abstractmethod
    def choose(self, blocks: Blocks, loads: Mapping[str, int]) -> str:
        """Who is to answer a request; it will be sent there.

        blocks: what it begins with.
        loads: of all that may be chosen, how many requests each has. Not empty.
        """

    def least_loaded(self, loads: Mapping[str, int]) -> str:
        """One that has the fewest; at random among equals."""
        fewest = min(loads.values())
        return self._rng.choice([n for n, x in loads.items() if x == fewest])


class ForgetfulPolicy(Policy):
    """One that looks at the moment only."""

    def join(self, name: str, capacity: int) -> None:
        pass

    def leave(self, name: str) -> None:
        pass


POLICIES = Registry[type[Policy]]("policy")


@POLICIES.register("random")
class RandomPolicy(ForgetfulPolicy):
    """Anyone."""

    def choose(self, blocks: Blocks, loads: Mapping[str, int]) -> str:
        return self._rng.choice([*loads])


@POLICIES.register("least-loaded")
class LeastLoadedPolicy(ForgetfulPolicy):
    """Who has the fewest requests."""

    def choose(self, blocks: Blocks, loads: Mapping[str, int]) -> str:
        return self.least_loaded(loads)


@POLICIES.register("prefix")
class PrefixPolicy(Policy):
    """Who knows most of the prompt, unless it has too much to do.

    Two kinds are compared: those that know the longest part of the prompt, and
    one with the least load. What a choice costs is counted in blocks: those
    that have to be computed there, and `wait` for each request that it has
    already. To put both into one number is the idea of Preble (Srivatsa et al.,
    2024, arXiv:2407.00023) and Mooncake (Qin et al., 2024, arXiv:2407.00079).
    Of equals the first is chosen, in the order of `loads`.

    wait: with 0 prefixes alone decide, with a large number loads alone.
    """

    def __init__(self, rng: Random | None = None, wait: float = 4.0) -> None:
        super().__init__(rng)
        self._wait = wait
        self._index = PrefixIndex()

    def join(self, name: str, capacity: int) -> None:
        self._index.join(name, capacity)

    def leave(self, name: str) -> None:
        self._index.leave(name)

    def choose(self, blocks: Blocks, loads: Mapping[str, int]) -> str:
        known = self._index.longest(blocks)
        # Not in the set's order, which is another one in every process.
        candidates = [n for n in loads if n in known]
        candidates.append(self.least_loaded(loads))

        def cost(name: str) -> float:
            missing = len(blocks) - self._index.match(name, blocks)
            return missing + self._wait * loads[name]

        best = min(candidates, key=cost)
        self._index.add(best, blocks)
        return best
