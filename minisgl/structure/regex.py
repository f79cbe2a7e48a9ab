"""Which regular expressions a grammar can keep to."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import lru_cache

_ESCAPES = frozenset("dDwWsSnrtfvxu0")
"""Letters and digits that mean something behind a backslash."""

_LONGEST = 4096
"""Characters of a pattern: to look at longer ones can take seconds, in every
process that a request passes."""


@lru_cache(maxsize=256)
def check_regex(pattern: str, in_json: bool = False) -> None:
    """Whether a pattern can be matched, and means what it says.

    It is matched as a whole, as Python's `re.fullmatch` does. What a grammar has
    no way to do is refused: looking ahead or back, references to groups, flags,
    word boundaries.

    in_json: it is of a string in JSON, where quotes, backslashes and control
        characters have to be written differently, so that it cannot name them;
        and xgrammar reads other letters than those of ASCII wrongly there.

    Raises:
        ValueError: with the position, counted from 0.
    """
    if len(pattern) > _LONGEST:
        raise ValueError(f"longer than {_LONGEST} characters")
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    for at, found, in_class in _atoms(pattern):
        if (reason := _reason(pattern, at, found, in_class, in_json)) != "":
            raise ValueError(f"{reason} at position {at}")


def _atoms(pattern: str) -> Iterator[tuple[int, str, bool]]:
    """Characters and escapes: where, which, and whether in a [class]."""
    at, in_class, opened = 0, False, -1
    while at < len(pattern):
        found = pattern[at : at + (2 if pattern[at] == "\\" else 1)]
        yield at, found, in_class
        if not in_class and found == "[":
            in_class, opened = True, at + 1 + pattern.startswith("^", at + 1)
        elif in_class and found == "]" and at > opened:
            in_class = False
        at += len(found)


def _reason(
    pattern: str, at: int, found: str, in_class: bool, in_json: bool
) -> str:
    """Why an atom of the pattern cannot be; empty if it can."""
    if found[0] == "\\":
        letter = found[1]
        if letter.isalnum() and letter not in _ESCAPES:
            return f"{found} is not supported"
        if in_json and letter in ("xu0" if in_class else '"\\nrtfvxu0'):
            return f"{found} is not supported in JSON, which escapes it"
        return ""
    if in_json and not found.isascii():
        return f"{found} is not supported in JSON: it is not ASCII"
    if in_class:
        return "[: is not supported" if pattern[at : at + 2] == "[:" else ""
    if found == "[" and pattern.startswith(("]", "^]"), at + 1):
        return "] as the first of a class is not supported; escape it,"
    if found == '"' and in_json:
        return "a quote is not supported in JSON, which escapes it"
    if found == "(" and pattern[at + 1 : at + 2] == "?":
        known = pattern.startswith("(?:", at)
        return "" if known else "(? other than (?: is not supported"
    if found == "^" and at > 0 and pattern[at - 1] != "|":
        return "^ after the beginning is not supported"
    if found == "$" and pattern[at + 1 : at + 2] not in ("", "|"):
        return "$ before the end is not supported"
    return ""
