"""Continuous batching: who is in a step is decided before every step."""

from __future__ import annotations

from tools.videos.film import At, events, film
from tools.videos.parts import bar, note, source
from tools.videos.printed import printed
from tools.videos.stage import Stage
from tools.videos.theme import (
    BLUE,
    GREEN,
    INK,
    LINE,
    PALE,
    RED,
    REQUESTS,
    SOFT,
    WHITE,
    mix,
    tint,
)

_EVENTS = events("batching")
_ONE, _FOURS, _JOIN = (
    _EVENTS["steps"][n]
    for n in ("one_by_one", "four_by_four", "join_and_leave")
)
_PROMPTS, _LIMITS = _EVENTS["prompts"], _EVENTS["limits"]
_PLACES = _EVENTS["rows"] * len(_FOURS)
_EMPTY = _PLACES - sum(len(step) - 1 for step in _FOURS)
_POOL = _EVENTS["admission"]["pages"]
_STEPS = _EVENTS["admission"]["steps"]
_NEED = [p + n for p, n in zip(_PROMPTS, _LIMITS, strict=True)]
_BOTH = _NEED[0] + _NEED[1]
_ENDS = next(i for i, s in enumerate(_STEPS) if 2 in dict(s["held"]))
_MS = {
    n: printed("graph-h200.txt", rf"\n +{n} +\S+ ms +(\S+) ms")[0]
    for n in (1, 8)
}
_FACTS = {
    "requests": len(_LIMITS),
    "one": len(_ONE),
    "fours": len(_FOURS),
    "join": len(_JOIN),
    "ms1": _MS[1],
    "ms8": _MS[8],
    "places": _PLACES,
    "empty": _EMPTY,
    "pool": _POOL,
    "need0": _NEED[0],
    "need1": _NEED[1],
    "need2": _NEED[2],
    "both": _BOTH,
    "unused": _POOL - sum(held for _, held in _STEPS[0]["held"]),
}

_Step = list[str | int]
_X, _WIDE = 150, 21


def _rows(steps: list[_Step]) -> dict[int, int]:
    """The row that each request has while it runs."""
    rows: dict[int, int] = {}
    for i, step in enumerate(steps):
        later = {uid for s in steps[i:] for uid in s[1:]}
        for uid in step[1:]:
            taken = {row for u, row in rows.items() if u in later}
            if uid not in rows:
                rows[int(uid)] = min({*range(8)} - taken)
    return rows


_ROWS = {"fours": _rows(_FOURS), "join": _rows(_JOIN)}


def _grid(
    stage: Stage, steps: list[_Step], which: str, seen: float, holes: float
) -> None:
    """Rows of the batch over steps, as far as they have been seen."""
    high = 72
    for row in range(_EVENTS["rows"]):
        y = 216 + row * (high + 8)
        stage.text(_X - 16, y + high / 2, f"row {row}", 20, SOFT, anchor="rm")
    stage.text(_X, 190, "steps", 20, SOFT)
    for i in range(round(seen * len(steps))):
        ran = {_ROWS[which][int(uid)]: int(uid) for uid in steps[i][1:]}
        for row in range(_EVENTS["rows"]):
            x, y = _X + i * _WIDE, 216 + row * (high + 8)
            fill = mix(RED, PALE, 0.45 * holes)
            if row in ran:
                color = REQUESTS[ran[row]]
                first = steps[i][0] == "prefill"
                fill = (
                    mix(INK, color, 0.45) if first else mix(color, WHITE, 0.75)
                )
            stage.box(x + 1, y, _WIDE - 2, high, fill, radius=3)


def _requests(stage: Stage, at: At) -> None:
    """When each request comes, and how long its answer is."""
    for uid, length in enumerate(_LIMITS):
        y, shown = 140 + uid * 52, at("come", 0.08 * uid)
        x = _X + (_EVENTS["arrivals"][uid] - 1) * _WIDE
        stage.text(
            _X - 20, y + 18, f"request {uid}", 20, SOFT, anchor="rm", show=shown
        )
        if shown > 0:
            width = length * _WIDE * shown
            stage.box(
                x, y, width, 36, mix(REQUESTS[uid], WHITE, 0.75), radius=6
            )


def _one_by_one(stage: Stage, at: At) -> None:
    seen = round(at.through("one", 0.2) * len(_ONE))
    for i, step in enumerate(_ONE[:seen]):
        color = mix(REQUESTS[int(step[1])], WHITE, 0.75)
        stage.box(60 + i * 10, 280, 9, 90, color, radius=2)
    note(stage, f"{seen} steps", 440, size=36)


def _bars(stage: Stage, rows: list[tuple[str, str, float, float]]) -> None:
    """Name, value, share of the longest, and how far it has grown."""
    for i, (name, value, share, grown) in enumerate(rows):
        y = 210 + i * 115
        stage.text(400, y + 30, name, 28, anchor="rm")
        color = BLUE if i == len(rows) - 1 else SOFT
        bar(stage, 430, y, 620 * share, 60, color, value, grown=grown, size=30)


def _pool(stage: Stage, at: At) -> None:
    """The KV pool as a bar: what is held (dark), what is promised (light)."""
    step = _STEPS[round(at.through("free", 0, 0.5) * _ENDS)]
    scale, x, y = 1040 / _POOL, 56.0, 250
    stage.text(56, 220, f"KV pool, {_POOL} slots", 24, SOFT)
    stage.box(x, y, 1040, 90, WHITE, LINE)
    shown = {0: at("pool", 0.2), 1: at("pool", 0.5)}
    for uid, held in step["held"]:
        show, color = shown.get(uid, 1.0), REQUESTS[uid]
        wide = _NEED[uid] * scale
        stage.box(x + 1, y + 4, wide - 2, 82, tint(color), color, show=show)
        inner = held * scale - 6
        stage.box(x + 4, y + 8, inner, 74, color, radius=6, show=show)
        label = f"request {uid}: {_NEED[uid]}"
        stage.text(x + wide / 2, y + 116, label, 26, color, anchor="mm",
                   bold=True, show=show)  # fmt: skip
        x += wide
    tried = at("waits", 0.4) - at("free")
    stage.box(
        x + 2, y - 8, _NEED[2] * scale, 106, None, RED, width=4, show=tried
    )
    key = "dark: in use    light: may still be asked for"
    stage.text(56, 430, key, 22, SOFT, show=at("pool", 0.7))
    stage.text(56, 520, "waiting", 24, SOFT, show=at("waits"))
    for i, uid in enumerate(step["waiting"]):
        wide, color = _NEED[uid] * scale, REQUESTS[uid]
        name = f"request {uid}: {_NEED[uid]}"
        stage.label(210 + i * 400, 490, wide, 60, name, 26, tint(color), color,
                    bold=True, show=at("waits", 0.1))  # fmt: skip
    total = f"{_BOTH} + {_NEED[2]} = {_BOTH + _NEED[2]}, more than {_POOL}"
    note(stage, total, 596, RED, tried - at("why"))
    note(
        stage,
        "or both may stop half way",
        596,
        RED,
        at("why", 0.2) - at("free"),
    )


def _same(stage: Stage, at: At) -> None:
    """A step for one request, and one for eight."""
    source(stage, "docs/outputs/graph-h200.txt", at("same"))
    slowest = max(map(float, _MS.values()))
    rows = [
        (name, f"{_MS[n]} ms", float(_MS[n]) / slowest, at("same", 0.4))
        for n, name in ((1, "1 request"), (8, "8 requests"))
    ]
    _bars(stage, rows)


def _count(stage: Stage, at: At) -> None:
    """Steps of the three ways."""
    ways = {"one by one": _ONE, "four by four": _FOURS, "continuous": _JOIN}
    rows = [
        (
            name,
            f"{len(steps)} steps",
            len(steps) / len(_ONE),
            at("count", 0.3 * i),
        )
        for i, (name, steps) in enumerate(ways.items())
    ]
    _bars(stage, rows)


def _batches(stage: Stage, at: At) -> None:
    """Fixed batches, then continuous ones."""
    if at.reached("decide"):
        seen = 0.25 * at.through("decide", 0.4) + 0.75 * at.through("leave")
        _grid(stage, _JOIN, "join", seen, 0)
        note(stage, f"{round(seen * len(_JOIN))} steps", 580)
        return
    seen, holes = at.through("fours", 0.15), at("holes")
    _grid(stage, _FOURS, "fours", seen, holes)
    empty = f"{_EMPTY} of {_PLACES} places empty"
    steps = f"{round(seen * len(_FOURS))} steps"
    note(stage, empty if holes else steps, 580, mix(RED, INK, holes))


def draw(stage: Stage, at: At) -> None:
    """Steps without and with continuous batching, then the pool."""
    if at.reached("room"):
        fits = "prompt + longest answer must fit"
        note(stage, fits, 150, show=at("room", 0.5))
        _pool(stage, at)
        note(stage, "who starts can finish", 596, GREEN, at("rule", 0.4))
    elif at.reached("count"):
        _count(stage, at)
    elif at.reached("fours"):
        _batches(stage, at)
    elif at.reached("same"):
        _same(stage, at)
    elif at.reached("one"):
        _one_by_one(stage, at)
    else:
        _requests(stage, at)


FILM = film("batching", _FACTS, draw)
