"""What a request may ask of sampling, checked when it is made."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass


@dataclass
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    temperature: 0 is greedy; otherwise logits are divided by it.
    top_k: keep the k likeliest tokens; 0, -1 or beyond the vocabulary is off.
    top_p: keep the smallest set whose probability reaches it, in (0, 1].
    ignore_eos: do not stop at an end token.
    max_tokens: most tokens to generate, the end token included.
    min_p: drop tokens less likely than min_p times the likeliest, in [0, 1].
    seed: makes the draws of this request repeatable, whatever runs beside it.

    Raises:
        ValueError: a value out of range; the message names the field.
    """

    temperature: float = 0.0
    top_k: int = -1
    top_p: float = 1.0
    ignore_eos: bool = False
    max_tokens: int = 1024
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_number("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, -1)
        _check_int("max_tokens", self.max_tokens, 1)
        if self.seed is not None:
            _check_int("seed", self.seed, -(2**63), 2**63 - 1)

    @property
    def is_greedy(self) -> bool:
        """Whether every draw would be the likeliest token."""
        return self.temperature == 0.0 or self.top_k == 1


def _check_number(
    name: str, value: float, low: float, high: float, above: bool = False
) -> None:
    """A finite number in [low, high], or in (low, high] with `above`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # An integer may be too large for a float, and is then not finite either.
    if not number or not -sys.float_info.max <= value <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if not low <= value <= high or (above and value == low):
        least = f"greater than {low:g}" if above else f"at least {low:g}"
        most = "" if high == math.inf else f" and at most {high:g}"
        raise ValueError(f"{name} must be {least}{most}, got {value!r}")


def _check_int(
    name: str, value: int, low: int, high: int | None = None
) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise ValueError(f"{name} must be at least {low}{most}, got {value}")
