"""Frames and voice to a film that browsers play."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tools.videos.film import Cue, Film, duration
from tools.videos.paint import paint
from tools.videos.stage import Shape
from tools.videos.theme import FPS, HEIGHT, WIDTH, FilmError
from tools.videos.voice import need


def encode(
    film: Film, cues: Sequence[Cue], track: Path, target: Path
) -> tuple[int, int]:
    """Write the film; returns frames, and how many of them were painted.

    Raises:
        FilmError: ffmpeg is missing or fails, or a text does not fit.
    """
    part = target.with_suffix(".part.mp4")
    frames, painted = round(duration(cues) * FPS), 0
    pixels = b""
    shapes: list[Shape] | None = None
    command = _command(track, part)
    with subprocess.Popen(command, stdin=subprocess.PIPE) as done:
        assert done.stdin is not None
        try:
            # Ffmpeg says itself why it went away.
            with suppress(BrokenPipeError), done.stdin:
                for frame in range(frames):
                    wanted = film.shapes(cues, frame / FPS)
                    if wanted != shapes:
                        shapes, pixels = wanted, paint(wanted).tobytes()
                        painted += 1
                    done.stdin.write(pixels)
        except BaseException:
            done.kill()
            raise
    if done.returncode:
        raise FilmError(f"{film.name}: ffmpeg ended with {done.returncode}")
    part.replace(target)
    return frames, painted


def _command(track: Path, target: Path) -> list[str]:
    size = f"{WIDTH}x{HEIGHT}"
    command = [need("ffmpeg", "ffmpeg"), "-loglevel", "error", "-y"]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size]
    command += ["-r", str(FPS), "-i", "-", "-i", str(track)]
    command += ["-c:v", "libx264", "-preset", "veryfast", "-crf", "23"]
    command += ["-tune", "animation", "-pix_fmt", "yuv420p", "-threads", "1"]
    command += ["-c:a", "aac", "-b:a", "64k", "-movflags", "+faststart"]
    return [*command, str(target)]
