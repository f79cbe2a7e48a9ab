"""Stills: the last moment of every sentence, on one sheet."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from tools.videos.film import Film, duration, guessed
from tools.videos.paint import paint
from tools.videos.theme import HEIGHT, PAPER, WIDTH

_COLUMNS, _SHRINK = 3, 2


def still(film: Film, key: str) -> Image.Image:
    """The picture right before the sentence after this one."""
    cues = film.cues(guessed(film))
    starts = [*(cue.start for cue in cues[1:]), duration(cues)]
    after = dict(zip((n.key for n in film.lines), starts, strict=True))
    return paint(film.shapes(cues, after[key] - 0.01))


def sheet(film: Film, target: Path) -> None:
    """Write a PNG with the stills of a film, in the order of its sentences."""
    wide, high = WIDTH // _SHRINK, HEIGHT // _SHRINK
    rows = -(-len(film.lines) // _COLUMNS)
    image = Image.new("RGB", (_COLUMNS * wide, rows * high), PAPER)
    for i, line in enumerate(film.lines):
        small = still(film, line.key).reduce(_SHRINK)
        image.paste(small, (i % _COLUMNS * wide, i // _COLUMNS * high))
    target.parent.mkdir(parents=True, exist_ok=True)
    image.save(target)
