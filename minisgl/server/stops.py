"""Stop strings, found in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes a text on until a stop string is in it.

    A stop string may begin in one piece and end in a later one, so what could be
    the beginning of one is held back until it is clear. Each string is searched
    for as Knuth, Morris and Pratt do (SIAM J. Comput. 6, 1977): the state is how
    much of it the text now ends with, and a character moves it without looking
    back at the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The next piece: what may be shown now, and whether a stop was met.

        What comes after a stop string is dropped, and so is the string itself.
        Where several end at one character, the longest one counts.
        """
        if not self._stops:
            return text, False
        whole, begin = self._held + text, len(self._held)
        for i, char in enumerate(text, begin):
            if found := self._step(char):
                self._held = ""
                return whole[: i + 1 - found], True
        keep = len(whole) - max(self._matched, default=0)
        self._held = whole[keep:]
        return whole[:keep], False

    def flush(self) -> str:
        """The text is over: what was held back is no stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> int:
        """Move every state; the length of the stop string that is complete."""
        found = 0
        for i, (stop, borders) in enumerate(self._stops):
            size = self._matched[i]
            while size and stop[size] != char:
                size = borders[size - 1]
            size += stop[size] == char
            self._matched[i] = size
            if size == len(stop):
                found = max(found, size)
        return found


def _borders(text: str) -> list[int]:
    """For each beginning of `text`, how much of it is also its end.

    The longest such border that is shorter than the beginning itself.
    """
    borders, size = [0], 0
    for char in text[1:]:
        while size and text[size] != char:
            size = borders[size - 1]
        size += text[size] == char
        borders.append(size)
    return borders
