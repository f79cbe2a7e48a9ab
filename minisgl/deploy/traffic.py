"""Made-up traffic: conversations of several turns, many that open alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from minisgl.deploy.blocks import TOKENS_A_BLOCK


@dataclass(frozen=True)
class Traffic:
    """What users do; all lengths are in tokens, all times in seconds.

    rate: conversations that begin in a second, for each replica.
    turns: of a conversation, on average.
    systems: different system prompts; the k-th is 1/k as common as the first.
    system, question, answer: lengths, on average, but the first for all alike.
    pause: from an answer to the next question, on average.
    """

    rate: float = 0.16
    turns: float = 6.0
    systems: int = 200
    system: int = 512
    question: int = 128
    answer: int = 256
    pause: float = 12.0

    def conversations(
        self, replicas: int, seconds: float, rng: Random
    ) -> Iterator[tuple[float, Conversation]]:
        """All that begin in this time, with when they do."""
        weights = [*accumulate(1 / k for k in range(1, self.systems + 1))]
        now, number = 0.0, 0
        while (now := now + rng.expovariate(self.rate * replicas)) < seconds:
            number += 1
            [which] = rng.choices(range(self.systems), cum_weights=weights)
            yield now, Conversation(self, number, which, rng)


class Conversation:
    """One user's; it asks until `left` is 0.

    blocks: of the next prompt.
    answer: tokens that will be made for it.
    """

    def __init__(
        self, traffic: Traffic, number: int, system: int, rng: Random
    ) -> None:
        self._traffic, self._number, self._rng = traffic, number, rng
        shared = traffic.system // TOKENS_A_BLOCK
        # Below 0, so that no conversation has the same ones of its own.
        self.blocks = [-1 - system * shared - i for i in range(shared)]
        self._shared, self._tokens = shared, 0
        self.left = 1
        while rng.random() > 1 / traffic.turns:
            self.left += 1
        self._ask()

    def answered(self) -> float:
        """Go on; the next question comes after so many seconds."""
        self._grow(self.answer)
        self._ask()
        self.left -= 1
        return self._rng.expovariate(1 / self._traffic.pause)

    def _ask(self) -> None:
        self._grow(self._draw(self._traffic.question))
        self.answer = self._draw(self._traffic.answer)

    def _draw(self, mean: int) -> int:
        return 1 + int(self._rng.expovariate(1 / mean))

    def _grow(self, tokens: int) -> None:
        """The prompt gets longer; a block counts when it is full."""
        self._tokens += tokens
        have = len(self.blocks) - self._shared
        for i in range(have, self._tokens // TOKENS_A_BLOCK):
            self.blocks.append((self._number << 20) + i)
