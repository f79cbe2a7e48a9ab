"""WebVTT: the sentences with their times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tools.videos.film import Cue, Film
from tools.videos.narration import LANGUAGES

_TIME = r"(\d+):(\d\d):(\d\d\.\d{3})"
_CUE = re.compile(rf"^{_TIME} --> {_TIME}\n(.+?)(?:\n\n|\n*\Z)", re.M | re.S)


def clock(seconds: float) -> str:
    """Hours, minutes, seconds as WebVTT writes them."""
    minutes, rest = divmod(round(seconds * 1000), 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest / 1000:06.3f}"


def write(film: Film, cues: Sequence[Cue], folder: Path) -> list[Path]:
    """NAME.en.vtt and NAME.zh.vtt, the same times in both."""
    found = []
    for language in LANGUAGES:
        blocks = ["WEBVTT"]
        for line, cue in zip(film.lines, cues, strict=True):
            times = f"{clock(cue.start)} --> {clock(cue.end)}"
            blocks.append(f"{times}\n{getattr(line, language)}")
        path = folder / f"{film.name}.{language}.vtt"
        path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
        found.append(path)
    return found


def read(path: Path) -> list[tuple[float, float, str]]:
    """Begin, end and text of each cue of a file."""
    return [
        (_seconds(*times[:3]), _seconds(*times[3:]), text.strip())
        for *times, text in _CUE.findall(path.read_text(encoding="utf-8"))
    ]


def _seconds(hours: str, minutes: str, rest: str) -> float:
    return 3600 * int(hours) + 60 * int(minutes) + float(rest)
