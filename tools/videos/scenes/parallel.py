"""Tensor parallelism: each rank has a part of every layer."""

from __future__ import annotations

from tools.videos.film import At, events, film
from tools.videos.parts import bar, between, note
from tools.videos.stage import Stage
from tools.videos.theme import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    SOFT,
    TEAL,
    VIOLET,
    WHITE,
    Color,
    mix,
    tint,
)

_EVENTS = events("parallel")
_HIDDEN, _MIDDLE = _EVENTS["hidden"], _EVENTS["middle"]
_PARTS, _WHOLE = _EVENTS["partial"], _EVENTS["whole"]
_RANKS, _WEIGHTS, _KV = (_EVENTS[n] for n in ("ranks", "weights_kib", "kv_kib"))
_HEADS, _PAIRS = _EVENTS["heads"], _EVENTS["kv_heads"]
assert _EVENTS["same_tokens"]


def _said(value: float) -> str:
    return f"minus {-value}" if value < 0 else f"{value}"


_FACTS = {
    "hidden": _HIDDEN,
    "middle": _MIDDLE,
    "part0": _PARTS[0][0],
    "part1": _PARTS[1][0],
    "whole": _WHOLE[0],
    "said0": _said(_PARTS[0][0]),
    "said1": _said(_PARTS[1][0]),
    "said": _said(_WHOLE[0]),
    "weights": _WEIGHTS,
    "pairs": _EVENTS["kv_heads"],
}

_INPUT, _UP, _MID, _DOWN, _OUT = 190, 310, 520, 640, 960  # lefts
_SIDE = 110  # of what has `hidden` numbers
_COLORS = (BLUE, AMBER)


def _vector(
    stage: Stage, x: float, y: float, high: float, color: Color, show: float
) -> None:
    stage.box(x, y - high / 2, 30, high, color, radius=5, show=show)


def _matrix(
    stage: Stage,
    x: float,
    y: float,
    size: tuple[float, float],
    color: Color,
    show: float,
) -> None:
    wide, high = size
    stage.box(
        x, y - high / 2, wide, high, tint(color), color, radius=6, show=show
    )


def _lane(stage: Stage, at: At, rank: int) -> None:
    """One rank's half of the MLP; before the cut, both halves make the whole."""
    cut = at("first", 0.05)
    sign, color = 2 * rank - 1, _COLORS[rank]
    mid = 335 + sign * 125 * cut  # of this rank's lane
    own = mix(color, SOFT, cut)
    half = between(335 + sign * _SIDE / 2, mid, cut)
    show = at("mlp")
    stage.text(56, mid, f"rank {rank}", 26, color, bold=True, show=cut)
    _vector(stage, _INPUT, mid, _SIDE, INK, show)
    _matrix(stage, _UP, half, (_SIDE, _SIDE), own, at("mlp", 0.15))
    ready = at("mlp", 0.3) - (at("first") - at("first", 0.6))
    _vector(stage, _MID, half, _SIDE, own, ready)
    across = _DOWN + rank * _SIDE * (1 - at("second"))
    shared = between(335, mid, cut)
    right = at("mlp", 0.6) - at("first") + at("second")
    _matrix(stage, across, shared, (_SIDE, _SIDE), own, right)
    done = at("mlp", 0.8) - at("first") + at("second", 0.6)
    result = mix(GREEN, own, at("reduce", 0.5))
    _vector(stage, _OUT, mid, _SIDE, result, done)
    for start, end in ((_INPUT + 36, _UP - 6), (_UP + 116, _MID - 6),
                       (_MID + 36, _DOWN - 6), (_DOWN + 116, _OUT - 6)):  # fmt: skip
        late = (1 - at("second")) if start > _DOWN else 0
        grown = right if start > _MID else at("mlp", 0.3)
        stage.arrow((start + _SIDE * late, mid), (end, mid), SOFT, 2, grown)
    for x, y, name in ((_UP, half, "½ W1"), (across, shared, "½ W2")):
        show = right if x > _MID else at("mlp", 0.15)
        stage.text(x + _SIDE / 2, y, name, 26, anchor="mm", on=tint(own),
                   show=show * cut)  # fmt: skip
    numbers = at("part", 0.2)
    for i, value in enumerate(_PARTS[rank]):
        y = mid - 36 + 36 * i
        gone = at("reduce", 0.5)
        stage.text(1100, y, f"{value:+.1f}", 26, color, anchor="rm", mono=True,
                   show=numbers - gone)  # fmt: skip
        stage.text(1100, y, f"{_WHOLE[i]:+.1f}", 26, GREEN, anchor="rm", mono=True,
                   show=gone)  # fmt: skip


def _mlp(stage: Stage, at: At) -> None:
    """The whole product, then a lane for each rank."""
    for rank in (0, 1):
        _lane(stage, at, rank)
    named = at("mlp", 0.4)
    for x, text in (
        (_INPUT + 15, f"{_HIDDEN}"),
        (_MID + 15, f"{_MIDDLE}"),
        (_OUT + 15, f"{_HIDDEN}"),
    ):
        stage.text(
            x, 120, text, 24, SOFT, anchor="mm", show=named - at("first")
        )
    texts = [
        ("first", "act", "cut along the output: no talking"),
        ("act", "second", "number by number: no talking"),
        ("second", "part", "cut along the input"),
        ("part", "reduce", "a part of every sum"),
        ("reduce", "heads", "all-reduce: the sum, on both ranks"),
    ]
    for key, until, text in texts:
        note(stage, text, 590, TEAL, at(key, 0.2) - at(until))
    pulse = at("act") - at("second")
    for rank in (0, 1):
        y = 335 + (2 * rank - 1) * 125
        stage.box(_MID - 6, y - 61, 42, 122, None, GREEN, width=4, radius=8,
                  show=pulse)  # fmt: skip
    grown = at("reduce", 0.1)
    for start, end in (((975, 275), (975, 395)), ((975, 395), (975, 275))):
        stage.arrow(start, end, GREEN, 4, grown)


def _whole_model(stage: Stage, at: At) -> None:
    """Layers as bars, cut in the middle."""
    apart = at("why", 0.6)
    for layer in range(6):
        y, show = 150 + layer * 68, at("why", 0.06 * layer)
        for rank in (0, 1):
            color = mix(_COLORS[rank], SOFT, apart)
            x = 340 + rank * 300 + (2 * rank - 1) * 40 * apart
            stage.box(
                x, y, 300, 56, mix(color, WHITE, 0.7), radius=4, show=show
            )
    for rank, x in ((0, 450), (1, 830)):
        stage.text(x, 580, f"rank {rank}", 28, _COLORS[rank], anchor="mm", bold=True,
                   show=apart)  # fmt: skip


def _attention(stage: Stage, at: At) -> None:
    """Heads over two ranks, and the pool that goes with them."""
    for rank in (0, 1):
        color, y = _COLORS[rank], 150 + rank * 215
        show = at("heads", 0.15 * rank)
        stage.box(
            56,
            y,
            1168,
            180,
            mix(color, WHITE, 0.08),
            color,
            radius=16,
            show=show,
        )
        stage.text(80, y + 90, f"rank {rank}", 28, color, bold=True, show=show)
        for i in range(_HEADS // 2):
            stage.label(230 + i * 130, y + 20, 118, 62, f"query {i + rank * 2}", 24,
                        tint(color), color, show=show)  # fmt: skip
        stage.label(230, y + 100, 248, 62, f"key, value {rank}", 24, tint(VIOLET),
                    VIOLET, show=show)  # fmt: skip
        part = at("heads", 0.6)
        stage.arrow((484, y + 131), (560, y + 131), SOFT, 3, part)
        stage.label(
            566, y + 100, 170, 62, "KV pool", 24, WHITE, VIOLET, show=part
        )
        part = at("twice")
        stage.arrow((742, y + 90), (790, y + 90), SOFT, 3, part)
        stage.label(796, y + 45, 190, 90, "projection", 26, tint(color), color,
                    show=part)  # fmt: skip
    part = at("twice", 0.3)
    stage.arrow((1100, 280), (1100, 410), GREEN, 4, part)
    stage.arrow((1100, 410), (1100, 280), GREEN, 4, part)
    stage.text(1100, 240, "all-reduce", 26, GREEN, anchor="mm", show=part)
    note(stage, "two all-reduces a layer", 594, GREEN, at("twice", 0.7))


def _sizes(stage: Stage, at: At) -> None:
    """What a rank holds."""
    stage.text(320, 130, "weights of a rank", 26, SOFT)
    stage.text(900, 130, "KV of a token", 26, SOFT, show=at("twins"))
    for i, ranks in enumerate(_RANKS):
        y, grown = 170 + i * 110, at("weights", 0.2 + 0.2 * i)
        name = f"{ranks} rank" + "s" * (ranks > 1)
        stage.text(290, y + 35, name, 28, anchor="rm", show=grown)
        length = 330 * _WEIGHTS[i] / _WEIGHTS[0]
        bar(
            stage, 320, y, length, 70, BLUE, f"{_WEIGHTS[i]:,} KiB", grown=grown
        )
        length = 180 * _KV[i] / _KV[0]
        grown = at("twins", 0.1 * i)
        bar(stage, 900, y, length, 70, VIOLET, f"{_KV[i]} KiB", grown=grown)
    note(stage, "1, 2 or 4 ranks: the same tokens", 560, GREEN, at("same"))


def draw(stage: Stage, at: At) -> None:
    """The model, an MLP by two ranks, attention, and what ranks hold."""
    if at.reached("weights"):
        _sizes(stage, at)
    elif at.reached("heads"):
        _attention(stage, at)
    elif at.reached("mlp"):
        _mlp(stage, at)
    else:
        _whole_model(stage, at)


FILM = film("parallel", _FACTS, draw)
