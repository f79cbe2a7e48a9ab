"""Percentiles of histograms, as whoever reads /metrics computes them."""

from __future__ import annotations

from collections.abc import Sequence

Buckets = list[tuple[float, float]]
"""Bound and count: all values up to the bound. The last bound is infinity."""


def between(
    earlier: Sequence[tuple[float, float]], later: Sequence[tuple[float, float]]
) -> Buckets:
    """What came between two readings of a histogram.

    A server that was started anew counts from 0: then all of `later` is new.
    """
    if later[-1][1] < earlier[-1][1]:
        return list(later)
    pairs = zip(earlier, later, strict=True)
    return [(bound, now - then) for (_, then), (bound, now) in pairs]


def quantile(q: float, buckets: Sequence[tuple[float, float]]) -> float | None:
    """The value below which a share q of all values lies; None without any.

    Values of a bucket are taken to lie evenly in it. Of the last bucket only
    its lower bound is known, which is the answer there.
    """
    total = buckets[-1][1]
    if total == 0:
        return None
    wanted, low, below = q * total, 0.0, 0.0
    for bound, count in buckets[:-1]:
        if count >= wanted and count > below:
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low
