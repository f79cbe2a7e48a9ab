"""What must hold for a finished film: it is measured, not believed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tools.videos import subtitles
from tools.videos.film import LONGEST, SHORTEST, Film, duration, guessed
from tools.videos.narration import LANGUAGES
from tools.videos.stage import Text
from tools.videos.theme import FilmError
from tools.videos.voice import RATE, need

_LOUD, _QUIET = 0.01, 0.003
"""Least loudness of a sentence, most of a pause; a full sine wave has 0.7."""

_NEAR = 0.15  # seconds that the encoder may move or smear a sound


def check(film: Film, folder: Path) -> list[str]:
    """What is wrong with the files of a film; empty if nothing is.

    Raises:
        FilmError: ffmpeg is missing, or a text leaves the frame.
    """
    target = folder / f"{film.name}.mp4"
    cues = {
        language: subtitles.read(folder / f"{film.name}.{language}.vtt")
        for language in LANGUAGES
    }
    found = probe(target)
    length, kinds = found["seconds"], found["kinds"]
    wrong = []
    if not SHORTEST <= length <= LONGEST:
        wrong.append(f"{length:.1f} s, not {SHORTEST:.0f} to {LONGEST:.0f}")
    if kinds != ["audio", "video"]:
        wrong.append(f"streams: {', '.join(kinds)}")
    times = {lang: [cue[:2] for cue in read] for lang, read in cues.items()}
    if times["en"] != times["zh"] or len(times["en"]) != len(film.lines):
        counts = ", ".join(f"{len(t)} {lang}" for lang, t in times.items())
        wrong.append(f"cues: {counts}, {len(film.lines)} sentences")
    wrong += order(times["en"], length)
    if "audio" in kinds:
        wrong += in_step(times["en"], loudness(target))
    wrong += overlapping(film)
    return [f"{film.name}: {line}" for line in wrong]


def probe(path: Path) -> dict[str, Any]:
    """Length in seconds and kinds of the streams."""
    command = [need("ffprobe", "ffmpeg"), "-v", "error", "-of", "json"]
    command += ["-show_entries", "format=duration:stream=codec_type", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FilmError(f"{path.name}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    kinds = sorted(stream["codec_type"] for stream in found["streams"])
    return {"seconds": float(found["format"]["duration"]), "kinds": kinds}


def order(times: list[tuple[float, float]], length: float) -> list[str]:
    """Cues that begin before the last one ends, or lie outside the film."""
    wrong, last = [], 0.0
    for start, end in times:
        if not last <= start < end <= length:
            wrong.append(f"the cue {start:.2f} to {end:.2f} s is out of order")
        last = end
    return wrong


def loudness(path: Path) -> npt.NDArray[np.float32]:
    """Samples of the film's voice, from -1 to 1."""
    command = [need("ffmpeg", "ffmpeg"), "-v", "error", "-i", str(path)]
    command += ["-ac", "1", "-ar", str(RATE), "-f", "f32le", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    return np.frombuffer(done.stdout, dtype=np.float32)


def in_step(
    times: list[tuple[float, float]], samples: npt.NDArray[np.float32]
) -> list[str]:
    """Sentences without a sound at their ends, and pauses that are not silent."""
    wrong, last = [], 0.0
    for start, end in times:
        if _level(samples, last + _NEAR, start - _NEAR) > _QUIET:
            wrong.append(f"somebody speaks before the cue at {start:.2f} s")
        half = min(1.0, (end - start) / 2)
        for begin in (start, end - half):
            if _level(samples, begin, begin + half) < _LOUD:
                wrong.append(f"nobody speaks at {begin:.2f} s")
        last = end
    if _level(samples, last + _NEAR, len(samples) / RATE) > _QUIET:
        wrong.append("somebody speaks after the last cue")
    return wrong


def _level(samples: npt.NDArray[np.float32], start: float, end: float) -> float:
    """The root mean square of a part."""
    part = samples[round(start * RATE) : round(end * RATE)]
    return float(np.sqrt(np.mean(part**2))) if len(part) else 0.0


def overlapping(film: Film) -> list[str]:
    """Texts that lie on one another at the end of a sentence.

    Raises:
        FilmError: a text leaves the frame.
    """
    cues, wrong = film.cues(guessed(film)), []
    starts = [*(cue.start for cue in cues[1:]), duration(cues)]
    for line, now in zip(film.lines, starts, strict=True):
        shapes = film.shapes(cues, now - 0.01)
        texts = [shape for shape in shapes if isinstance(shape, Text)]
        for i, one in enumerate(texts):
            for other in texts[i + 1 :]:
                if _meet(one.bounds, other.bounds):
                    pair = f"{one.text!r} and {other.text!r}"
                    wrong.append(f"{pair} overlap at the end of {line.key}")
    return wrong


def _meet(
    one: tuple[float, float, float, float],
    other: tuple[float, float, float, float],
) -> bool:
    """Whether two texts share more than their margins."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide > 1 and high > 1
