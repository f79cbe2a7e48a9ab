"""Integer arithmetic that has a name."""

from __future__ import annotations


def div_even(a: int, b: int) -> int:
    """a / b where b must divide a."""
    if a % b != 0:
        raise ValueError(f"{a} cannot be divided evenly by {b}")
    return a // b


def div_ceil(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def align_ceil(a: int, b: int) -> int:
    """The least multiple of b that is not below a."""
    return div_ceil(a, b) * b


def align_down(a: int, b: int) -> int:
    """The greatest multiple of b that is not above a."""
    return a // b * b
