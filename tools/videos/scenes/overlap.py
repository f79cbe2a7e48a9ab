"""Overlap scheduling: the host's work hides behind the GPU's."""

from __future__ import annotations

from collections.abc import Iterator

from tools.videos.film import At, events, film
from tools.videos.parts import bar, grid, note, source
from tools.videos.printed import printed
from tools.videos.stage import Stage
from tools.videos.theme import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    LINE,
    PALE,
    RED,
    SOFT,
    TEAL,
    VIOLET,
    WHITE,
    Color,
    mix,
    tint,
)

_EVENTS = events("overlap")
_OFF, _ON = (_EVENTS[name]["turns"] for name in ("off", "on"))
_VOID = next(i for i, t in enumerate(_ON) if "-" in (t["read"] or ""))
_LATE, _SEEN = _ON[_VOID - 1]["launch"], _ON[_VOID - 1]["read"]
_FAST = printed("levers-h200.txt", r"all, the better.*?([\d,]+) tokens/s")[0]
_SLOW = printed("levers-h200.txt", r"without overlap +([\d,]+) tokens/s")[0]

_FACTS = {
    "turn": _VOID,
    "late": _ON[_VOID - 1]["launch"][0],
    "on": len(_ON),
    "off": len(_OFF),
    "fast": _FAST,
    "slow": _SLOW,
}

_Span = tuple[str, str, float, float, int]
"""Lane, text, begin, end, batch; not to scale."""

_HOST, _GPU = 74.0, 210.0
_NUMBERS = (BLUE, AMBER, GREEN, VIOLET, TEAL)


def _plain() -> Iterator[_Span]:
    now = 0.0
    for batch in range(3):
        yield "host", "plan", now, now + _HOST, batch
        now += _HOST
        yield "GPU", "compute", now, now + _GPU, batch
        now += _GPU
        yield "host", "read", now, now + _HOST, batch
        now += _HOST


def _overlapped() -> Iterator[_Span]:
    free, ready = 0.0, 0.0  # when the host and the GPU are
    for batch in range(5):
        yield "host", "plan", free, free + _HOST, batch
        free += _HOST
        start = max(ready, free)
        if batch:
            yield "host", "read", ready, ready + _HOST, batch - 1
            free = ready + _HOST
        ready = start + _GPU
        yield "GPU", "compute", start, ready, batch


_DOES = {"host": "decides and prepares", "GPU": "computes"}
_LANES = {"host": 210, "GPU": 370}
_LEFT, _LENGTH = 150, 1074


def _lanes(
    stage: Stage, spans: list[_Span], seen: float, gaps: float, show: float
) -> None:
    """What host and GPU do, as far as it has been seen."""
    now = seen * _LENGTH
    for name, y in _LANES.items():
        stage.text(
            _LEFT - 24, y + 45, name, 30, anchor="rm", bold=True, show=show
        )
        ground = mix(RED, PALE, 0.4 * gaps) if name == "GPU" else PALE
        stage.box(_LEFT, y, _LENGTH, 90, ground, radius=6, show=show)
    for lane, text, begin, end, batch in spans:
        end = min(end, now, _LENGTH)
        if end - begin < 4:
            continue
        x, y, wide = _LEFT + begin, _LANES[lane], end - begin - 2
        color = _NUMBERS[batch]
        fill = color if lane == "GPU" else mix(color, WHITE, 0.35)
        ink = WHITE if lane == "GPU" else INK
        stage.box(x + 1, y + 3, wide, 84, fill, radius=6, show=show)
        lines = (
            [f"batch {batch + 1}"] if lane == "GPU" else [text, str(batch + 1)]
        )
        for i, line in enumerate(lines if wide > _HOST - 4 else []):
            up = y + 45 + 16 * (2 * i + 1 - len(lines))
            stage.text(x + wide / 2, up, line, 22, ink, anchor="mm", on=fill,
                       show=show)  # fmt: skip
    stage.text(
        1224, 480, "time, not to scale", 20, SOFT, anchor="rm", show=show
    )


def _pool(stage: Stage, at: At) -> None:
    """The token pool on the GPU: batch one writes, batch two reads."""
    stage.box(150, 130, 980, 400, tint(TEAL), TEAL, radius=16)
    stage.text(180, 166, "GPU", 28, TEAL, bold=True, on=tint(TEAL))
    for i, (x, name) in enumerate([(220, "batch 1"), (830, "batch 2")]):
        stage.label(
            x, 230, 230, 90, name, 30, _NUMBERS[i], color=WHITE, bold=True
        )
    grid(stage, 400, 400, 10, 1, 48)
    stage.text(400, 476, "token pool", 24, on=tint(TEAL))
    wrote, read = at("place", 0.25), at("place", 0.65)
    stage.box(594, 402, 44, 44, mix(BLUE, WHITE, 0.8), radius=4, show=wrote)
    stage.text(616, 424, "?", 28, WHITE, anchor="mm", bold=True,
               on=BLUE, show=wrote)  # fmt: skip
    stage.arrow((400, 322), (600, 398), BLUE, 4, at("place", 0.15))
    stage.arrow((632, 398), (860, 324), AMBER, 4, read)
    known = "the host knows where, not what"
    note(stage, known, 586, show=at("plan"))
    ask = "which token?"
    stage.text(640, 275, ask, 28, RED, anchor="mm", on=tint(TEAL),
               show=at("how", 0.3) - at("place", 0.1))  # fmt: skip


def _table(stage: Stage, at: At) -> None:
    """What each turn launched and read, as the engine did it."""
    columns = [(170, "turn"), (320, "launches batch"), (800, "reads tokens of")]
    for x, name in columns:
        stage.text(x, 118, name, 24, SOFT)
    for i, turn in enumerate(_ON):
        y, part = 160 + i * 46, at.through("three", 0.3) * len(_ON) - i
        marked = at("late") if i == _VOID - 1 else 0.0
        marked = at("void") if i == _VOID else marked
        color: Color = mix(AMBER, WHITE, 0.25 * marked)
        stage.box(150, y - 20, 980, 40, color, radius=6, show=min(1, part))
        stage.text(200, y, str(i + 1), 26, anchor="mm", on=color, show=part)
        if turn["launch"]:
            number, phase, names = turn["launch"]
            text = f"{number}  {phase:8}{' '.join(names)}"
            stage.text(320, y, text, 26, mono=True, on=color, show=part)
        if turn["read"]:
            text = f"{i}  {' '.join(turn['read'])}"
            stage.text(800, y, text, 26, mono=True, on=color, show=part)
    late = (
        f"A: the last token of a, read after batch {_FACTS['late']} is launched"
    )
    note(stage, late, 594, RED, at("late", 0.3) - at("void"))
    stage.line((150, 575), (1130, 575), color=LINE, width=1)
    gone = at("void", 0.3) - at("price")
    note(stage, "a dash: a token that nobody wants", 594, RED, gone)
    price = f"{len(_ON)} turns in place of {len(_OFF)}, the same answers"
    note(stage, price, 594, GREEN, at("price"))


def _gain(stage: Stage, at: At) -> None:
    source(stage, "docs/outputs/levers-h200.txt", at("gain"))
    most = int(_FAST.replace(",", ""))
    for i, (name, count, color) in enumerate(
        [("without overlap", _SLOW, SOFT), ("with overlap", _FAST, BLUE)]
    ):
        y = 240 + i * 130
        stage.text(400, y + 35, name, 30, anchor="rm")
        length = 540 * int(count.replace(",", "")) / most
        bar(stage, 430, y, length, 70, color, f"{count} tokens/s",
            grown=at("gain", 0.2 + 0.2 * i), size=30)  # fmt: skip


def draw(stage: Stage, at: At) -> None:
    """Two lanes, the pool between batches, then the recorded turns."""
    if at.reached("gain"):
        _gain(stage, at)
    elif at.reached("three"):
        _table(stage, at)
    elif at.reached("how", 0.2):
        _pool(stage, at)
    elif at.reached("later"):
        seen = at.through("later") * 0.6 + at.through("hidden", 0, 0.6) * 0.4
        _lanes(stage, [*_overlapped()], seen, 0, 1)
        note(stage, "launch first, read later", 560, show=at("later", 0.2))
    else:
        seen = at.through("turns")
        _lanes(stage, [*_plain()], seen, at("idle", 0.2), at("halves"))
        idle = "red: the GPU waits for the host"
        note(stage, idle, 560, RED, at("idle", 0.4))
        for i, (name, does) in enumerate(_DOES.items()):
            show = at("halves", 0.3 + 0.35 * i) - at("turns")
            stage.text(687, _LANES[name] + 45, does, 30, anchor="mm", on=PALE,
                       show=show)  # fmt: skip


FILM = film("overlap", _FACTS, draw)
