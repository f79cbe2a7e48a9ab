"""Shapes that several films use."""

from __future__ import annotations

from collections.abc import Sequence

from tools.videos.stage import Stage
from tools.videos.theme import (
    BLUE,
    INK,
    LINE,
    PALE,
    RED,
    SOFT,
    WHITE,
    Color,
    mix,
    tint,
)


def between(start: float, end: float, part: float) -> float:
    """From start (0) to end (1)."""
    return start + (end - start) * part


def cells(
    stage: Stage,
    x: float,
    y: float,
    texts: Sequence[str],
    color: Color = BLUE,
    *,
    wide: float = 86,
    high: float = 46,
    size: int = 22,
    show: float = 1,
) -> None:
    """Tokens side by side, each in a tinted cell."""
    for i, text in enumerate(texts):
        left = x + i * wide
        stage.label(
            left + 2,
            y,
            wide - 4,
            high,
            text,
            size,
            tint(color),
            color,
            radius=6,
            show=show,
        )


def note(
    stage: Stage,
    text: str,
    y: float = 592,
    color: Color = INK,
    show: float = 1,
    size: int = 28,
) -> None:
    """A line in the middle of the frame."""
    stage.text(640, y, text, size, color, anchor="mm", show=show)


def source(stage: Stage, text: str, show: float) -> None:
    """Where measured numbers come from."""
    stage.text(1224, 96, text, 18, SOFT, anchor="rm", show=show)


def bar(
    stage: Stage,
    x: float,
    y: float,
    length: float,
    high: float,
    color: Color,
    text: str,
    *,
    grown: float = 1,
    size: int = 26,
) -> None:
    """A horizontal bar that grows, and its value behind it."""
    if grown <= 0:
        return
    stage.box(x, y, max(2, length * grown), high, color, radius=4)
    stage.text(
        x + length * grown + 14, y + high / 2, text, size, show=2 * grown - 1
    )


def process(
    stage: Stage,
    x: float,
    y: float,
    w: float,
    h: float,
    name: str,
    color: Color,
    *,
    lit: float = 0,
    show: float = 1,
) -> None:
    """A process or a part of the engine; `lit` while it works."""
    ground = mix(tint(color), WHITE, 0.35 + 0.65 * lit)
    stage.box(
        x, y, w, h, ground, color, width=2 + 2 * lit, radius=14, show=show
    )
    stage.text(
        x + w / 2, y + h / 2, name, 22, anchor="mm", bold=True, on=ground,
        show=show,
    )  # fmt: skip


def cross(stage: Stage, x: float, y: float, size: float, show: float) -> None:
    """A red cross."""
    for sign in (-1, 1):
        stage.line(
            (x - size, y - sign * size),
            (x + size, y + sign * size),
            color=RED,
            width=5,
            show=show,
        )


def grid(
    stage: Stage, x: float, y: float, columns: int, rows: int, size: float,
    show: float = 1,
) -> None:  # fmt: skip
    """Empty places."""
    for i in range(columns * rows):
        left, top = x + i % columns * size, y + i // columns * size
        stage.box(
            left + 1,
            top + 1,
            size - 2,
            size - 2,
            PALE,
            LINE,
            radius=3,
            width=1,
            show=show,
        )
