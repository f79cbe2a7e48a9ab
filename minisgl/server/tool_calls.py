"""Calls of functions, found in an answer that comes in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from minisgl.structure.tags import ARGUMENTS, END, NAME, OPEN

_HEAD = re.compile(
    re.escape(OPEN + NAME) + r'("(?:[^"\\]|\\.)*")' + re.escape(ARGUMENTS)
)


@dataclass
class Part:
    """A part of an answer: text, the beginning of a call, or more of one.

    call: the number of the call; None is text.
    name: of the function, where a call begins.
    """

    text: str
    call: int | None = None
    name: str | None = None


class CallSplitter:
    """Tells calls from text; the grammar has seen to it that they are whole.

    What could be the beginning of a mark is held back until that is clear, and
    so is white space in front of one, which belongs to neither.
    """

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._arguments = ""  # of the last call, as far as they are shown
        self.calls = 0

    @property
    def complete(self) -> bool:
        """Whether there are calls, and the last one has ended."""
        return self.calls > 0 and not self._inside

    def feed(self, text: str, last: bool = False) -> Iterator[Part]:
        """What the next piece of the answer brings.

        last: nothing follows; what was held back is shown as it is, unless it
            is certain that it belongs to a mark.
        """
        self._held += text
        while (part := self._next()) is not None:
            yield part
        if last and self._held:
            if not self._is_mark():
                call = self.calls - 1 if self._inside else None
                yield Part(self._held, call)
            self._held = ""

    def _is_mark(self) -> bool:
        """Whether what is held at the end is of a mark that was cut off."""
        if self._inside:
            # A brace may be the last one of the arguments, or the one after.
            return "\n" in self._held or _is_json(self._arguments)
        # Between calls, and after the last one, there is nothing to say.
        rest = self._held.lstrip()
        return self.calls > 0 and (
            OPEN.startswith(rest) or rest.startswith(OPEN)
        )

    def _next(self) -> Part | None:
        """The next part that is certain; takes it out of what is held."""
        if self._inside:
            return self._next_in_call()
        head = _HEAD.match(self._held.lstrip())
        if head is not None:
            self._held = self._held.lstrip()[head.end() :]
            self._inside, self._arguments = True, ""
            self.calls += 1
            return Part("", self.calls - 1, json.loads(head[1]))
        at = self._held.find(OPEN)
        if at < 0:
            at = len(self._held) - _overlap(self._held, OPEN)
        return self._take(len(self._held[:at].rstrip()))

    def _next_in_call(self) -> Part | None:
        at, call = self._held.find(END), self.calls - 1
        if at >= 0:
            shown = self._held[:at]
            self._held = self._held[at + len(END) :]
            self._inside = False
            return Part(shown, call)
        keep = _overlap(self._held, END)
        part = self._take(len(self._held) - keep, call)
        self._arguments += "" if part is None else part.text
        return part

    def _take(self, size: int, call: int | None = None) -> Part | None:
        if size == 0:
            return None
        shown, self._held = self._held[:size], self._held[size:]
        return Part(shown, call)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _overlap(text: str, mark: str) -> int:
    """How much of the end of `text` is the beginning of `mark`."""
    most = min(len(text), len(mark) - 1)
    sizes = range(most, 0, -1)
    return next((n for n in sizes if text.endswith(mark[:n])), 0)
