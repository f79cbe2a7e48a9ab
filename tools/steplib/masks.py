"""Compare what a main printed with its output.txt, measured values aside."""

from __future__ import annotations

import re
from itertools import zip_longest

# A measured value is printed as `~12.3`; its width may change, and with it the
# spaces that align a column.
_MEASURED = re.compile(r"[ \t]*~[ \t]*[\d.,]*\d[ \t]*")


def mask(line: str) -> str:
    """The line with measured digits, spaces beside them and at its end dropped."""
    return _MEASURED.sub(" ~# ", line).rstrip()


def first_difference(
    expected: str, printed: str
) -> tuple[int, str, str] | None:
    """Line number from 1, expected and printed line where they first differ."""
    pairs = zip_longest(expected.splitlines(), printed.splitlines())
    for number, (want, got) in enumerate(pairs, 1):
        if want is None or got is None or mask(want) != mask(got):
            return number, _quoted(want), _quoted(got)
    return None


def _quoted(line: str | None) -> str:
    return "the end" if line is None else repr(line)
