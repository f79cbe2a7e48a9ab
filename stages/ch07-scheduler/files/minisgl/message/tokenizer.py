"""Messages to whoever turns tokens into text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DetokenizeMsg:
    """One more token of a request, or its end.

    next_token: the id; -1 when the request failed and there is none.
    finished: this is the last message about it.
    finish_reason: with the last one: stop (an end token), length, or error.
    error: what went wrong, for a person to read.
    """

    uid: int
    next_token: int
    finished: bool
    finish_reason: str | None = None
    error: str | None = None
