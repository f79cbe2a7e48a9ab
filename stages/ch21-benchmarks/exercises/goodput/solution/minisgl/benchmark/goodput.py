"""The highest load at which users are still content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minisgl.benchmark.client import BenchmarkResult, BenchOneResult


@dataclass(frozen=True)
class Goal:
    """What is promised to a user.

    first: most seconds to the first piece of an answer.
    gap: most seconds between one piece and the next.
    """

    first: float
    gap: float

    def is_met(self, one: BenchOneResult) -> bool:
        """Whether this answer keeps the promise; one without a piece does not."""
        if len(one.tics) < 2:
            return False
        return one.first <= self.first and max(one.gaps, default=0) <= self.gap

    def share(self, result: BenchmarkResult) -> float:
        """The share of all answers that keep it."""
        kept = sum(self.is_met(one) for one in result.raw_data)
        return kept / len(result.raw_data)


def find_rate(
    measure: Callable[[float], float],
    low: float,
    high: float,
    share: float = 0.99,
    exact: float = 0.1,
) -> float:
    """The highest rate from low to high at which at least `share` is kept.

    measure: the share at a rate; it falls as the rate grows, and takes minutes.
    exact: stop when the answer is known to so many requests a second.
    Returns a rate that has been measured to be good; 0 if there is none.
    """
    if measure(high) >= share:
        return high
    if measure(low) < share:
        return 0.0
    while high - low > exact:
        middle = (low + high) / 2
        if measure(middle) >= share:
            low = middle
        else:
            high = middle
    return low
