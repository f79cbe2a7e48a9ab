"""Shapes to pixels: drawn twice as large and halved, which smooths edges."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw

from tools.videos.stage import Area, Box, Shape, Stroke, Text
from tools.videos.theme import HEIGHT, PAPER, WIDTH, font

_SCALE = 2


def paint(shapes: Sequence[Shape]) -> Image.Image:
    """The picture of a moment, RGB, WIDTH x HEIGHT."""
    size = (WIDTH * _SCALE, HEIGHT * _SCALE)
    image = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(image)
    for shape in shapes:
        _paint_one(draw, shape)
    return image.reduce(_SCALE)


def _paint_one(draw: ImageDraw.ImageDraw, shape: Shape) -> None:
    match shape:
        case Box(x, y, w, h, fill, edge, radius, width):
            corners = [_SCALE * v for v in (x, y, x + w, y + h)]
            line = round(_SCALE * width) if edge else 0
            round_by = min(radius, w / 2, h / 2) * _SCALE
            draw.rounded_rectangle(corners, round_by, fill, edge, line)
        case Stroke(points, color, width):
            draw.line(
                [_SCALE * v for point in points for v in point],
                color,
                round(_SCALE * width),
                joint="curve",
            )
        case Area(points, color):
            draw.polygon([_SCALE * v for point in points for v in point], color)
        case Text():
            draw.text(
                (shape.x * _SCALE, shape.y * _SCALE),
                shape.text,
                shape.color,
                font(shape.size * _SCALE, shape.bold, shape.mono),
                anchor=shape.anchor,
            )
