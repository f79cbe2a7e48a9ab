"""Who speaks the sentences: espeak-ng, or a voice of the network."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import wave
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tools.videos.film import Cue, duration
from tools.videos.theme import FilmError

RATE = 22050
"""Samples a second; one channel of 16 bits."""

VOICES = ("espeak", "edge")
_SPOKEN = {
    r"\bCUDA\b": "kooda",
    r"\bprefill": "pre-fill",
    r"\bdetokenizer": "dee tokenizer",
    r"\b[Mm]ini-sglang\b": "mini S G lang",
    r"(\d),(\d{3})": r"\1\2",
}
"""How espeak-ng has to read words that it does not know."""


def spoken(text: str) -> str:
    """A sentence as espeak-ng has to read it."""
    for pattern, say in _SPOKEN.items():
        text = re.sub(pattern, say, text)
    return text


def speak(texts: Sequence[str], voice: str, folder: Path) -> list[Path]:
    """A WAV file for each sentence; those that exist are not made again.

    Raises:
        FilmError: the voice, or ffmpeg, is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make = {"espeak": _espeak, "edge": _edge}[voice]
    found = []
    for text in texts:
        key = hashlib.sha256(f"{voice} {spoken(text)}".encode()).hexdigest()[
            :16
        ]
        path = folder / f"{key}.wav"
        if not path.exists():
            part = path.with_suffix(".part.wav")
            make(text, part)
            part.replace(path)
        found.append(path)
    return found


def need(program: str, package: str) -> str:
    """The path of a program.

    Raises:
        FilmError: it is not installed.
    """
    found = shutil.which(program)
    if found is None:
        raise FilmError(
            f"{program} is not installed (apt-get install {package})"
        )
    return found


def _espeak(text: str, path: Path) -> None:
    program = need("espeak-ng", "espeak-ng")
    command = [program, "-v", "en-us", "-s", "152", "-p", "42", "-g", "2"]
    subprocess.run([*command, "-w", str(path), spoken(text)], check=True)


def _edge(text: str, path: Path) -> None:
    if find_spec("edge_tts") is None:
        raise FilmError("edge-tts is not installed: pip install '.[videos]'")
    ffmpeg, mp3 = need("ffmpeg", "ffmpeg"), path.with_suffix(".mp3")
    command = [sys.executable, "-m", "edge_tts", "--voice", "en-US-GuyNeural"]
    command += ["--text", text, "--write-media", str(mp3)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason was given"]
        raise FilmError(
            f"edge-tts fails: {lines[-1]}; without --voice edge no network "
            "is needed"
        )
    convert = [ffmpeg, "-loglevel", "error", "-y", "-i", str(mp3)]
    convert += ["-ac", "1", "-ar", str(RATE), str(path)]
    subprocess.run(convert, check=True)
    mp3.unlink()


def read(path: Path) -> bytes:
    """The samples of a WAV file of this module's format."""
    with wave.open(str(path)) as file:
        form = file.getframerate(), file.getnchannels(), file.getsampwidth()
        if form != (RATE, 1, 2):
            raise FilmError(f"{path.name}: not 16 bit mono at {RATE} Hz")
        return _trim(file.readframes(file.getnframes()))


def _trim(samples: bytes) -> bytes:
    """Without the silence at the end."""
    end = len(samples.rstrip(b"\0"))
    return samples[: end + end % 2]


def seconds(samples: bytes) -> float:
    """How long they are heard."""
    return len(samples) / (2 * RATE)


def write_track(
    parts: Sequence[bytes], cues: Sequence[Cue], path: Path
) -> None:
    """One WAV file with each sentence where its cue begins."""
    track = bytearray(2 * round(duration(cues) * RATE))
    for part, cue in zip(parts, cues, strict=True):
        at = 2 * round(cue.start * RATE)
        track[at : at + len(part)] = part
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(track)
