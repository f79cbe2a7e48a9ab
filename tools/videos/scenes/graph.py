"""CUDA graphs: a decode step is recorded once and launched as one."""

from __future__ import annotations

from itertools import groupby

from tools.videos.film import At, events, film
from tools.videos.parts import bar, between, cross, note, source
from tools.videos.printed import printed
from tools.videos.stage import Stage
from tools.videos.theme import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    PALE,
    RED,
    REQUESTS,
    SOFT,
    TEAL,
    WHITE,
    mix,
    tint,
)

_EVENTS = events("graph")
_SIZES, _STEPS = _EVENTS["sizes"], _EVENTS["steps"]
_FIRST = next(step for step in _STEPS if step[0] == "decode")
_RUNS = [
    (size, padded, len([*same]))
    for (phase, size, padded), same in groupby(map(tuple, _STEPS))
    if phase == "decode"
]
_MS = {
    n: printed("graph-h200.txt", rf"\n +{n} +(\S+) ms +(\S+) ms")
    for n in (1, 8, 64, 256)
}
_COUNT, _START = printed("graph-h200.txt", r"(\d+) recordings: (\S+) s more")

_FACTS = {
    "layers": _EVENTS["layers"],
    "operators": _EVENTS["operators"],
    "one": _MS[1],
    "many": max(_MS),
    "most": _MS[max(_MS)],
    "answers": _EVENTS["answers"],
    "right": _EVENTS["equal_if_forgotten"],
    "smaller": ", ".join(map(str, _SIZES[:-1])),
    "largest": _SIZES[-1],
    "size": _FIRST[1],
    "padded": _FIRST[2],
    "start": _START,
    "count": _COUNT,
}

_HEAD = {"host": 200, "GPU": 350}
_LEFT, _LENGTH = 160, 1064


def _lanes(stage: Stage, at: At) -> None:
    """Launch by launch above, then as one."""
    one = at("replay", 0.1)
    seen = at.through("launch") if one == 0 else at.through("replay", 0.1, 0.8)
    if at.reached("record") and one == 0:
        seen = 1.0
    for name, y in _HEAD.items():
        stage.text(_LEFT - 24, y + 40, name, 30, anchor="rm", bold=True)
        stage.box(_LEFT, y, _LENGTH, 80, PALE, radius=6)
    count, step = 12, _LENGTH / 12
    for i in range(count):
        begin = _LEFT + i * step
        if i / count > seen:
            break
        if one == 0:
            stage.box(
                begin + 2,
                204,
                step * 0.7,
                72,
                mix(AMBER, WHITE, 0.6),
                radius=4,
            )
            stage.box(begin + step * 0.7, 354, 26, 72, BLUE, radius=4)
        else:
            begin = _LEFT + step + i * 28
            stage.box(begin, 354, 26, 72, BLUE, radius=4)
    if one > 0:
        fill = mix(GREEN, WHITE, 0.6)
        stage.label(_LEFT + 2, 204, step * 0.7, 72, "1", 28, fill)
    stage.text(1224, 452, "time, not to scale", 20, SOFT, anchor="rm")
    wait = at("launch", 0.6) - at("record")
    note(stage, "the GPU waits for the host", 540, RED, wait)
    kept = at("record", 0.3) - at("replay")
    _tape(stage, 530, kept)
    note(stage, "one launch, no gaps", 540, GREEN, at("replay", 0.5))


def _tape(stage: Stage, y: float, show: float) -> None:
    """A recording: kernels with their addresses."""
    stage.box(240, y - 40, 800, 84, tint(TEAL), TEAL, radius=14, show=show)
    for i, name in enumerate(
        ["norm", "matmul", "rotate", "store", "attend", "..."]
    ):
        stage.label(256 + i * 129, y - 26, 122, 56, name, 24, WHITE, show=show)


def _count(stage: Stage, at: At) -> None:
    """Operators of one step, as small pieces."""
    shown = round(at.through("small", 0.1) * _EVENTS["operators"])
    for i in range(shown):
        x, y = 92 + i % 53 * 20.7, 190 + i // 53 * 40
        stage.box(x, y, 17, 32, mix(BLUE, WHITE, 0.75), radius=3)
    note(stage, f"{shown} operators, one step", 530, size=34)


def _gain(stage: Stage, at: At) -> None:
    source(stage, "docs/outputs/graph-h200.txt", 1)
    most = max(float(launched) for launched, _ in _MS.values())
    for i, (size, pair) in enumerate(_MS.items()):
        y, part = 140 + i * 112, at("gain", 0.15 * i)
        name = f"{size} request" + "s" * (size > 1)
        stage.text(270, y + 38, name, 26, anchor="rm", show=part)
        for row, (ms, color) in enumerate(zip(pair, (SOFT, BLUE), strict=True)):
            length = 700 * float(ms) / most
            bar(stage, 300, y + row * 40, length, 34, color, f"{ms} ms",
                grown=part, size=24)  # fmt: skip
    stage.text(
        640, 600, "grey: launched    blue: replayed", 22, SOFT, anchor="mm"
    )


def _buffers(stage: Stage, at: At) -> None:
    """Inputs of a step are copied to where the recording reads."""
    names = ["ids", "positions", "slots"]
    stage.text(120, 150, "this step", 26, SOFT)
    stage.text(520, 150, "fixed addresses", 26, SOFT)
    stage.box(900, 180, 300, 320, tint(TEAL), TEAL, radius=16)
    stage.text(
        1050, 340, "recording", 30, anchor="mm", bold=True, on=tint(TEAL)
    )
    for i, name in enumerate(names):
        y = 190 + i * 112
        stage.label(
            120, y, 220, 80, name, 28, tint(BLUE), BLUE, show=at("same")
        )
        stage.arrow((742, y + 40), (896, y + 40), INK, 3, at("same", 0.2))
        moved = at("copy", 0.25 + 0.2 * i)
        gone = at("forget") if i == 0 else 0.0
        stage.arrow(
            (344, y + 40), (516, y + 40), mix(RED, BLUE, gone), 4, moved
        )
        old = moved < 1 or gone > 0.5
        edge = mix(RED, BLUE, gone) if moved == 1 else INK
        stage.label(520, y, 220, 80, f"old {name}" if old else name, 26,
                    WHITE if old else tint(BLUE), edge)  # fmt: skip
        if 0 < moved < 1:
            x = between(120, 520, moved)
            stage.label(x, y, 220, 80, name, 28, tint(BLUE), BLUE)
    cross(stage, 430, 230, 26, at("forget", 0.2))
    wrong = (
        f"{_EVENTS['equal_if_forgotten']} of {_EVENTS['answers']} answers right"
    )
    note(stage, wrong, 570, RED, at("forget", 0.5))


def _sizes(stage: Stage, at: At) -> None:
    """Recordings as frames; a batch of five in that of eight."""
    for i, size in enumerate(_SIZES):
        y, show = 130 + i * 76, at("sizes", 0.4 + 0.12 * i) - at("shrink")
        stage.text(250, y + 30, f"for {size}", 26, anchor="rm", show=show)
        for place in range(size):
            x, fill, edge = 280 + place * 84, WHITE, TEAL
            stage.box(x, y, 76, 60, fill, edge, show=show)
            if size != _FIRST[2] or place >= _FIRST[2]:
                continue
            part = at("pad", 0.08 * place) * show
            real = place < _FIRST[1]
            color = REQUESTS[place] if real else SOFT
            text = "abcdefgh"[place] if real else "–"
            stage.label(
                x + 6, y + 6, 64, 48, text, 26, tint(color), color, show=part
            )
    dummy = f"{_FIRST[2] - _FIRST[1]} dummies"
    note(stage, dummy, 500, SOFT, at("pad", 0.5) - at("shrink"))


def _shrink(stage: Stage, at: At) -> None:
    """The recorded steps: requests, and the recording that ran them."""
    x, done = 90.0, 0
    total = sum(times for *_, times in _RUNS)
    stage.text(90, 150, "decode steps", 24, SOFT)
    for size, padded, times in _RUNS:
        left = x
        for _ in range(times):
            show = min(1.0, max(0.0, at.through("shrink", 0.1) * total - done))
            for place in range(padded):
                color = REQUESTS[place] if place < size else SOFT
                fill = mix(color, WHITE, 0.75 if place < size else 0.3)
                y = 470 - place * 36
                stage.box(x, y, 80, 32, fill, radius=4, show=show)
            x, done = x + 92, done + 1
        middle = (left + x - 12) / 2
        show = at("shrink", 0.25 + 0.15 * (done / total))
        stage.text(middle, 530, f"recorded {padded}", 22, TEAL, anchor="mm",
                   show=show)  # fmt: skip
    note(
        stage,
        "prompts: launched as before",
        590,
        AMBER,
        at.during("prompts", "price"),
    )
    price = f"{_COUNT} recordings: {_START} s at the start"
    note(stage, price, 590, BLUE, at("price", 0.2))


def draw(stage: Stage, at: At) -> None:
    """Lanes, buffers, sizes."""
    if at.reached("shrink"):
        _shrink(stage, at)
    elif at.reached("sizes"):
        _sizes(stage, at)
    elif at.reached("same"):
        _buffers(stage, at)
    elif at.reached("gain"):
        _gain(stage, at)
    elif at.reached("launch"):
        _lanes(stage, at)
    else:
        _count(stage, at)


FILM = film("graph", _FACTS, draw)
