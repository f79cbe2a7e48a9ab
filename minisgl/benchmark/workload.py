"""The requests that are measured, drawn the same way every time."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

LARGEST_ID = 10_000
"""Prompts use ids up to this one, or fewer if the vocabulary is smaller."""
EIGHTH = 8
UNTIMED = 10**6
"""The round of requests that only warm up. No timed one comes so far, and a
negative number would not do: its sign is no part of a seed."""


@dataclass(frozen=True)
class Request:
    """Prompt ids, and how many tokens to make, whatever they are."""

    prompt: list[int]
    output: int


@dataclass(frozen=True)
class Workload:
    """Requests of random ids and of uneven lengths.

    requests: how many.
    shortest, longest: tokens of a prompt, and of an answer.
    shared: further tokens that come first in every prompt.
    long: further tokens that every eighth prompt has at its end.
    temperature: of the sampling; 0 is greedy.

    Raises:
        ValueError: there would be no request, or no token in one.
    """

    requests: int
    shortest: int
    longest: int
    shared: int = 0
    long: int = 0
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ValueError("requests must be at least 1")
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                "lengths go from shortest to longest, at least 1, not from "
                f"{self.shortest} to {self.longest}"
            )
        if self.shared < 0 or self.long < 0:
            raise ValueError("shared and long must be at least 0")

    def draw(self, vocab: int, number: int = 0) -> list[Request]:
        """The requests of a round.

        The lengths are those of seed 0 in every round. The ids are too in round
        0; later ones have others, for no round may find in the prefix cache
        what the one before it has left there.

        vocab: tokens of the vocabulary.
        """
        last = min(LARGEST_ID, vocab - 1)
        rng = Random(0)
        # In the order of nano-vllm's benchmark, so that seed 0 gives its
        # requests: all prompts, each a length and its ids, then the answers.
        prompts = [
            [rng.randint(0, last) for _ in range(self._length(rng))]
            for _ in range(self.requests)
        ]
        outputs = [self._length(rng) for _ in range(self.requests)]
        if number:
            rng = Random(number)
            prompts = [[rng.randint(0, last) for _ in p] for p in prompts]
        first = [rng.randint(0, last) for _ in range(self.shared)]
        for prompt in prompts[EIGHTH - 1 :: EIGHTH]:
            prompt += [rng.randint(0, last) for _ in range(self.long)]
        pairs = zip(prompts, outputs, strict=True)
        return [Request(first + prompt, output) for prompt, output in pairs]

    def _length(self, rng: Random) -> int:
        return rng.randint(self.shortest, self.longest)


WORKLOADS = {
    "gpu": Workload(256, 100, 1024, temperature=0.6),
    "cpu": Workload(64, 16, 256),
}
"""By name: that of the reference numbers on a GPU, and one that a CPU bears."""

QUEUES = {
    "gpu": Workload(256, 100, 1024, shared=512, long=8192),
    "cpu": Workload(32, 16, 64, shared=128, long=512),
}
"""The same for more requests than run at once, of which some have long prompts
and all begin alike: every part of the engine has something to do."""
