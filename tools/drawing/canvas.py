"""A small SVG canvas that refuses text which does not fit.

Pictures are narrow (440 units), so that on a phone of 390 px letters keep about 11 px.
They have a light ground of their own; the book's style sheet turns the colours round
in its dark scheme, and on a code host they are readable in either.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from html import escape

WIDTH = 440
FONT = 13
LINE = 17

# fill, border, text
PALETTE = {
    "plain": ("#ffffff", "#9aa0b4", "#1f2333"),
    "blue": ("#dfe7ff", "#5468c7", "#1f2a6b"),
    "green": ("#d9f2e1", "#3d9a63", "#14502d"),
    "amber": ("#ffe9c7", "#c98a1f", "#6b4406"),
    "red": ("#ffdcd9", "#c9504a", "#73201b"),
    "grey": ("#eceef4", "#b4b9c9", "#5a6072"),
    "none": ("none", "none", "#1f2333"),
}
_SANS = "system-ui, 'Noto Sans', 'Noto Sans CJK SC', 'PingFang SC', sans-serif"
_MONO = "ui-monospace, 'Roboto Mono', 'Noto Sans Mono', monospace"


class DrawingError(ValueError):
    """A picture has text that does not fit or leaves its frame."""


def text_width(text: str, size: float = FONT, mono: bool = False) -> float:
    """About how wide a line is; rather too much than too little."""
    total = 0.0
    for char in text:
        if unicodedata.east_asian_width(char) in "WF":
            total += 1.0
        elif mono:
            total += 0.61
        else:
            total += 0.35 if char in " .,:;'|()[]ijlt" else 0.58
    return total * size


@dataclass
class Canvas:
    """Shapes in drawing order; `svg` gives the file.

    title: the alternative text, read aloud by a screen reader.
    """

    title: str
    height: int
    width: int = WIDTH
    _parts: list[str] = field(default_factory=list)

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        text: str = "",
        kind: str = "plain",
        mono: bool = False,
        size: float = FONT,
        dashed: bool = False,
    ) -> None:
        """A rounded box with lines of text in its middle."""
        fill, border, color = PALETTE[kind]
        self._inside(x, y)
        self._inside(x + w, y + h)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4" '
            f'fill="{fill}" stroke="{border}"{dash}/>'
        )
        lines = text.split("\n") if text else []
        first = y + h / 2 - (len(lines) - 1) * LINE / 2
        for number, line in enumerate(lines):
            if text_width(line, size, mono) > w - 4:
                raise DrawingError(f"{line!r} is wider than its box of {w:g}")
            self._line(
                x + w / 2,
                first + number * LINE,
                line,
                "middle",
                color,
                mono,
                size,
            )
        if lines and len(lines) * LINE > h + 4:
            raise DrawingError(f"{text!r} is higher than its box of {h:g}")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str = "start",
        color: str = "#1f2333",
        mono: bool = False,
        size: float = FONT,
        bold: bool = False,
    ) -> None:
        """Free lines of text; y is the middle of the first."""
        for number, line in enumerate(text.split("\n")):
            width = text_width(line, size, mono)
            left = x - {"start": 0, "middle": width / 2, "end": width}[anchor]
            self._inside(left, y + number * LINE)
            self._inside(left + width, y + number * LINE)
            self._line(
                x, y + number * LINE, line, anchor, color, mono, size, bold
            )

    def cells(
        self,
        x: float,
        y: float,
        texts: list[str],
        kinds: list[str] | str = "plain",
        w: float = 26,
        h: float = 24,
    ) -> None:
        """A row of equal cells."""
        if isinstance(kinds, str):
            kinds = [kinds] * len(texts)
        for number, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
            self.box(x + number * w, y, w, h, text, kind, mono=True, size=12)

    def arrow(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        label: str = "",
        dx: float = 6,
        dy: float = 0,
        anchor: str = "start",
        dashed: bool = False,
        color: str = "#5a6072",
    ) -> None:
        """A straight arrow; its label stands `dx`, `dy` from its middle."""
        for x, y in ((x1, y1), (x2, y2)):
            self._inside(x, y)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self._parts.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="{color}" fill="none"'
            f' stroke-width="1.4" marker-end="url(#head)"{dash}/>'
        )
        if label:
            middle = (x1 + x2) / 2 + dx, (y1 + y2) / 2 + dy
            self.text(*middle, label, anchor, "#5a6072", size=12)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, dashed: bool = False
    ) -> None:
        """A thin line without a head."""
        dash = ' stroke-dasharray="3 3"' if dashed else ""
        self._parts.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" stroke="#9aa0b4"{dash}/>'
        )

    def svg(self) -> str:
        """The file's text."""
        title = escape(self.title)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" role="img" '
                f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
                f'height="{self.height}" aria-label="{title}">',
                f"<title>{title}</title>",
                '<defs><marker id="head" markerWidth="8" markerHeight="8" '
                'refX="6" refY="3" orient="auto"><path d="M0 0L7 3L0 6z" '
                'fill="#5a6072"/></marker></defs>',
                f'<rect width="{self.width}" height="{self.height}" rx="8" '
                'fill="#f6f7fb"/>',
                *self._parts,
                "</svg>",
                "",
            ]
        )

    def _inside(self, x: float, y: float) -> None:
        if not (0 <= x <= self.width and 0 <= y <= self.height):
            raise DrawingError(
                f"{x:g}, {y:g} is outside of {self.width} x {self.height}"
            )

    def _line(
        self,
        x: float,
        y: float,
        text: str,
        anchor: str,
        color: str,
        mono: bool,
        size: float,
        bold: bool = False,
    ) -> None:
        family = _MONO if mono else _SANS
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-family="{family}" '
            f'font-size="{size:g}" fill="{color}" text-anchor="{anchor}"'
            f'{weight} dominant-baseline="central">{escape(text)}</text>'
        )
