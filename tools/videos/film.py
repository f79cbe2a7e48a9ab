"""A film: sentences, when each is spoken, and what is drawn meanwhile."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.videos import narration
from tools.videos.narration import Line
from tools.videos.stage import Shape, Stage
from tools.videos.theme import SOFT

EVENTS = Path(__file__).parent / "events"
SHORTEST, LONGEST = 90.0, 120.0
"""Seconds that a film may take."""

_LEAD, _TAIL = 1.0, 2.0  # seconds before the first and after the last sentence
_PAUSES = 0.35, 1.6  # the least and the longest one between two sentences
_WANTED = 104.0  # pauses are made such that a film comes near to this
_MOVE = 0.9  # seconds that a movement takes unless it is told otherwise


@dataclass(frozen=True)
class Cue:
    """From when to when a sentence is heard, in seconds."""

    start: float
    end: float


class At:
    """Where in the narration a moment is; all answers are from 0 to 1."""

    def __init__(self, cues: dict[str, Cue], now: float) -> None:
        self._cues, self._now = cues, now

    def __call__(
        self, key: str, after: float = 0.0, seconds: float = _MOVE
    ) -> float:
        """A movement that begins in this sentence, eased at both ends.

        after: the part of the sentence that is heard before it begins.
        """
        cue = self._cues[key]
        begin = cue.start + after * (cue.end - cue.start)
        part = min(1.0, max(0.0, (self._now - begin) / seconds))
        return part * part * (3 - 2 * part)

    def through(self, key: str, begin: float = 0.0, end: float = 1.0) -> float:
        """Evenly from one part of a sentence to another."""
        cue = self._cues[key]
        length = cue.end - cue.start
        start = cue.start + begin * length
        part = (self._now - start) / max(1e-6, (end - begin) * length)
        return min(1.0, max(0.0, part))

    def during(self, key: str, until: str | None = None) -> float:
        """Fades in with one sentence, out with the beginning of another."""
        return self(key) - (self(until) if until else 0.0)

    def reached(self, key: str, after: float = 0.0) -> bool:
        """Whether that part of a sentence has been heard."""
        cue = self._cues[key]
        return self._now >= cue.start + after * (cue.end - cue.start)


@dataclass(frozen=True)
class Film:
    """A scene script.

    name: of the file, the events and the block in the pages.
    lines: the narration.
    draw: puts the picture of a moment on the stage.
    poster: the key of the sentence whose last moment stands for the film.
    """

    name: str
    title: str
    lines: Sequence[Line]
    draw: Callable[[Stage, At], None]
    poster: str

    def cues(self, seconds: Sequence[float]) -> list[Cue]:
        """When each sentence is heard, if speaking them takes that long."""
        spare = _WANTED - _LEAD - _TAIL - sum(seconds)
        least, most = _PAUSES
        pause = min(most, max(least, spare / max(1, len(seconds) - 1)))
        found, now = [], _LEAD
        for length in seconds:
            found.append(Cue(now, now + length))
            now += length + pause
        return found

    def shapes(self, cues: Sequence[Cue], now: float) -> list[Shape]:
        """The picture of a moment.

        Raises:
            FilmError: a text does not fit.
        """
        keys = [line.key for line in self.lines]
        stage = Stage()
        stage.text(56, 54, self.title, 34, bold=True)
        stage.text(1224, 54, "mini-sglang by hand", 20, SOFT, anchor="rm")
        self.draw(stage, At(dict(zip(keys, cues, strict=True)), now))
        return stage.shapes


def duration(cues: Sequence[Cue]) -> float:
    """Seconds of a film with these sentences."""
    return cues[-1].end + _TAIL


def guessed(film: Film) -> list[float]:
    """About how long each sentence is spoken, where no voice is at hand."""
    return [0.5 + 0.062 * len(line.en) for line in film.lines]


def events(name: str) -> Any:
    """What the engine did, as `recorders` wrote it down."""
    return json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))


def film(
    name: str, facts: Mapping[str, Any], draw: Callable[[Stage, At], None]
) -> Film:
    """The film whose narration has that name."""
    said = narration.read(name)
    lines = narration.lines(said, facts)
    return Film(name, said["title"]["en"], lines, draw, said["poster"])


def load(name: str) -> Film:
    """The film of that name."""
    found: Film = importlib.import_module(f"tools.videos.scenes.{name}").FILM
    return found
