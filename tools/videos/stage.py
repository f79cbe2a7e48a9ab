"""What a scene draws on: a list of shapes, checked while it grows.

Two moments with equal lists look alike, so only one of them is painted.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.videos.theme import (
    INK,
    PAPER,
    SAFE,
    WHITE,
    Color,
    FilmError,
    extent,
    mix,
)

Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle with round corners, from its left upper corner."""

    x: float
    y: float
    w: float
    h: float
    fill: Color | None
    edge: Color | None
    radius: float
    width: float


class Stroke(NamedTuple):
    """A line through points."""

    points: tuple[Point, ...]
    color: Color
    width: float


class Area(NamedTuple):
    """A filled polygon."""

    points: tuple[Point, ...]
    color: Color


class Text(NamedTuple):
    """A line of text; `bounds` are left, top, right, bottom."""

    x: float
    y: float
    text: str
    size: int
    color: Color
    anchor: str
    bold: bool
    mono: bool
    bounds: tuple[float, float, float, float]


Shape = Box | Stroke | Area | Text


class Stage:
    """Shapes in the order of painting.

    Everything takes `show`, from 0 (not there) to 1: how far it has faded in.
    """

    def __init__(self) -> None:
        self.shapes: list[Shape] = []

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        fill: Color | None = WHITE,
        edge: Color | None = None,
        *,
        radius: float = 10,
        width: float = 2,
        show: float = 1,
    ) -> None:
        """A rectangle."""
        if show <= 0:
            return
        fill = fill and mix(fill, PAPER, show)
        edge = edge and mix(edge, PAPER, show)
        self.shapes.append(Box(x, y, w, h, fill, edge, radius, width))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: int = 26,
        color: Color = INK,
        *,
        anchor: str = "lm",
        bold: bool = False,
        mono: bool = False,
        on: Color = PAPER,
        show: float = 1,
    ) -> None:
        """A line of text; `anchor` as in Pillow, `on` is what it stands on.

        Raises:
            FilmError: it would leave the frame or lie where subtitles are.
        """
        if show <= 0 or not text:
            return
        near = extent(text, size, bold, mono, anchor)
        bounds = (x + near[0], y + near[1], x + near[2], y + near[3])
        left, top, right, bottom = SAFE
        if not (
            left <= bounds[0]
            and top <= bounds[1]
            and bounds[2] <= right
            and bounds[3] <= bottom
        ):
            at = ", ".join(f"{value:.0f}" for value in bounds)
            raise FilmError(f"the text {text!r} at ({at}) leaves {SAFE}")
        color = mix(color, on, show)
        self.shapes.append(
            Text(x, y, text, size, color, anchor, bold, mono, bounds)
        )

    def label(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        text: str,
        size: int = 22,
        fill: Color = WHITE,
        edge: Color | None = None,
        color: Color = INK,
        *,
        bold: bool = False,
        mono: bool = False,
        radius: float = 10,
        width: float = 2,
        show: float = 1,
    ) -> None:
        """A box with its text in the middle.

        Raises:
            FilmError: the text is wider or higher than the box.
        """
        left, top, right, bottom = extent(text, size, bold, mono, "mm")
        if right - left > w - 4 or bottom - top > h:
            raise FilmError(f"the text {text!r} does not fit {w:.0f} x {h:.0f}")
        self.box(x, y, w, h, fill, edge, radius=radius, width=width, show=show)
        self.text(
            x + w / 2,
            y + h / 2,
            text,
            size,
            color,
            anchor="mm",
            bold=bold,
            mono=mono,
            on=mix(fill, PAPER, show),
            show=show,
        )

    def line(
        self, *points: Point, color: Color = INK, width: float = 3,
        show: float = 1,
    ) -> None:  # fmt: skip
        """A line through points."""
        if show > 0:
            color = mix(color, PAPER, show)
            self.shapes.append(Stroke(points, color, width))

    def arrow(
        self, start: Point, end: Point, color: Color = INK, width: float = 3,
        grown: float = 1,
    ) -> None:  # fmt: skip
        """An arrow that grows from its start: `grown` is 1 when it arrives."""
        if grown <= 0:
            return
        (x, y), (dx, dy) = start, (end[0] - start[0], end[1] - start[1])
        length = max(1.0, (dx * dx + dy * dy) ** 0.5)
        ux, uy, far = dx / length, dy / length, length * min(1.0, grown)
        tip, head = (x + ux * far, y + uy * far), min(far, 5 + 3 * width)
        back = (tip[0] - ux * head, tip[1] - uy * head)
        self.line(start, back, color=color, width=width)
        half = head * 0.5
        left = (back[0] - uy * half, back[1] + ux * half)
        right = (back[0] + uy * half, back[1] - ux * half)
        self.shapes.append(Area((tip, left, right), color))
