"""Stop strings: end an answer at a text that may come in pieces."""

from __future__ import annotations


class StopFilter:
    """Lets text through until a stop string is complete.

    stopped: one was; nothing comes out any more.
    """

    def __init__(self, stops: list[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string may not be empty")
        self.stops = stops
        self.stopped = False
        self._held = ""

    def push(self, piece: str) -> str:
        """Take the next piece of the answer; return what can be shown now.

        The answer ends before the stop string that is complete first, or before
        the longest of those that end in the same place. How the text is cut into
        pieces makes no difference. Text is held back only while it may be the
        beginning of a stop string.
        """
        if self.stopped:
            return ""
        text = self._held + piece
        places = ((text.find(stop), len(stop)) for stop in self.stops)
        ends = [(at + size, at) for at, size in places if at >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)[1]]
        keep = max((_begun(text, stop) for stop in self.stops), default=0)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """The answer has ended: what was still held back."""
        rest, self._held = self._held, ""
        return rest


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of `text` may begin `stop`."""
    longest = min(len(stop) - 1, len(text))
    fitting = (n for n in range(longest, 0, -1) if text.endswith(stop[:n]))
    return next(fitting, 0)
