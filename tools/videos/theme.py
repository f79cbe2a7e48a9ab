"""Size, colours and fonts of all films."""

from __future__ import annotations

from functools import lru_cache

from PIL import ImageFont

WIDTH, HEIGHT, FPS = 1280, 720, 24
SAFE = (32, 24, WIDTH - 32, 622)
"""Left, top, right and bottom of what a text may touch; subtitles lie below."""

Color = tuple[int, int, int]

PAPER: Color = (250, 248, 243)
INK: Color = (38, 46, 58)
SOFT: Color = (110, 119, 132)
LINE: Color = (197, 200, 204)
PALE: Color = (236, 234, 228)
WHITE: Color = (255, 255, 255)
BLUE: Color = (66, 114, 176)
GREEN: Color = (74, 146, 106)
AMBER: Color = (214, 142, 49)
RED: Color = (192, 84, 78)
VIOLET: Color = (128, 100, 162)
TEAL: Color = (58, 143, 152)
BROWN: Color = (146, 110, 84)
ROSE: Color = (201, 112, 148)
REQUESTS = (BLUE, AMBER, GREEN, VIOLET, RED, TEAL, BROWN, ROSE)
"""What tells requests apart."""


class FilmError(Exception):
    """A film cannot be made; the text says what to do."""


def mix(color: Color, ground: Color, share: float) -> Color:
    """`share` of a colour over a ground: 0 is the ground, 1 the colour."""
    share = min(1.0, max(0.0, share))
    red, green, blue = (
        round(g + (c - g) * share) for c, g in zip(color, ground, strict=True)
    )
    return red, green, blue


def tint(color: Color) -> Color:
    """A light ground of that colour, for dark text on it."""
    return mix(color, PAPER, 0.22)


@lru_cache(maxsize=256)
def font(size: int, bold: bool, mono: bool) -> ImageFont.FreeTypeFont:
    """DejaVu in that size, in pixels.

    Raises:
        FilmError: the font is not installed.
    """
    name = "DejaVuSans" + "Mono" * mono + "-Bold" * bold + ".ttf"
    try:
        return ImageFont.truetype(name, size)
    except OSError:
        raise FilmError(
            f"no font {name}: install fonts-dejavu-core (apt-get install)"
        ) from None


@lru_cache(maxsize=8192)
def extent(
    text: str, size: int, bold: bool, mono: bool, anchor: str
) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a text, seen from its anchor."""
    return font(size, bold, mono).getbbox(text, anchor=anchor)
