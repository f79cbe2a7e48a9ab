"""The radix cache: prompts that begin alike share what is in the KV pool."""

from __future__ import annotations

from typing import Any

from tools.videos.film import At, events, film
from tools.videos.parts import bar, between, cells, note
from tools.videos.stage import Stage
from tools.videos.theme import (
    AMBER,
    BLUE,
    GREEN,
    INK,
    RED,
    SOFT,
    Color,
    mix,
)

_EVENTS = events("radix")
_SHOTS, _ASKED = _EVENTS["shots"], _EVENTS["questions"]
_PROMPTS = [shot["what"].split() for shot in _SHOTS[:3]]
_KNOWN = [shot["known"] for shot in _SHOTS[:3]]
_SHARED = _KNOWN[2]
_FREED = _SHOTS[4]["freed"]
_WIDE, _HIGH, _MIDDLE = 100, 50, 366

_FACTS = {
    "known2": _KNOWN[1],
    "computed2": _SHOTS[1]["computed"],
    "known3": _KNOWN[2],
    "freed": len(_FREED),
    **_ASKED,
}


def _places(shot: dict[str, Any]) -> dict[int, tuple[float, float, str, bool]]:
    """By slot: where its cell is in a tree, its word, and whether it is locked."""
    nodes = shot["nodes"]
    parents = {node["parent"] for node in nodes}
    leaves = [n["slots"][0] for n in nodes if n["slots"][0] not in parents]
    rows = {name: float(i) for i, name in enumerate(leaves)}
    for node in reversed(nodes):  # children come after their parents
        name = node["slots"][0]
        below = [rows[n["slots"][0]] for n in nodes if n["parent"] == name]
        rows.setdefault(name, sum(below) / max(1, len(below)))
    ends: dict[int | None, float] = {None: 66}
    found = {}
    for node in nodes:
        name, left = node["slots"][0], ends[node["parent"]] + 46
        y = _MIDDLE + (rows[name] - (len(leaves) - 1) / 2) * 118
        pairs = zip(node["slots"], node["words"], strict=True)
        for i, (slot, word) in enumerate(pairs):
            found[slot] = (left + i * _WIDE, y, word, node["locked"])
        ends[name] = left + len(node["slots"]) * _WIDE
    return found


def _links(stage: Stage, shot: dict[str, Any], show: float) -> None:
    """From the end of each parent to the beginning of its children."""
    places = _places(shot)
    last = {n["slots"][0]: places[n["slots"][-1]] for n in shot["nodes"]}
    for node in shot["nodes"]:
        x, y, *_ = places[node["slots"][0]]
        start = (74.0, float(_MIDDLE))
        if node["parent"] is not None:
            start = (
                last[node["parent"]][0] + _WIDE - 2,
                last[node["parent"]][1],
            )
        stage.line(start, (x + 2, y), color=SOFT, show=show)


def _tree(
    stage: Stage,
    old: int,
    new: int,
    part: float,
    marks: dict[int, tuple[Color, float]],
) -> None:
    """The tree on its way from one snapshot to the next; slots with marks tinted."""
    stage.box(46, _MIDDLE - 14, 28, 28, INK, radius=14)
    _links(stage, _SHOTS[old], 1 - part)
    _links(stage, _SHOTS[new], part)
    before, after = _places(_SHOTS[old]), _places(_SHOTS[new])
    for slot in before | after:
        x, y, word, locked = after.get(slot) or before[slot]
        show = part if slot not in before else 1.0
        if slot in before and slot in after:
            x = between(before[slot][0], x, part)
            y = between(before[slot][1], y, part)
        elif slot in before:
            show = 1 - part
        color, share = marks.get(slot, (BLUE, 0.0))
        color = mix(color, mix(AMBER, BLUE, locked * part), share)
        cells(
            stage, x, y - 25, [word], color, wide=_WIDE, high=_HIGH, show=show
        )
        slot_x = x + _WIDE / 2
        stage.text(slot_x, y + 41, str(slot), 18, SOFT, anchor="mm", show=show)


def _prompt(stage: Stage, at: At, which: int, key: str, until: str) -> None:
    """A prompt above the tree; its known words turn green one by one."""
    show = at(key) - at(until)
    for i, word in enumerate(_PROMPTS[which]):
        color = mix(GREEN, SOFT, _matched(at, key, which, i))
        if i >= _KNOWN[which]:
            color = mix(BLUE, SOFT, at(key, 0.9))
        x = 112 + i * _WIDE
        cells(stage, x, 118, [word], color, wide=_WIDE, high=_HIGH, show=show)
    computed = len(_PROMPTS[which]) - _KNOWN[which]
    count = f"known {_KNOWN[which]}, computed {computed}"
    note(stage, count, show=show * at(key, 0.9))


def _matched(at: At, key: str, which: int, word: int) -> float:
    """How far a word of a prompt has been found in the tree."""
    part = at.through(key, 0.25, 0.95) * _KNOWN[which] - word
    return min(1.0, max(0.0, part)) if word < _KNOWN[which] else 0.0


def _beginnings(stage: Stage, at: At) -> None:
    """Three prompts, one below the other; the first one becomes the tree."""
    gone, moved = at("keep"), at("node")
    for row, words in enumerate(_PROMPTS):
        for i, word in enumerate(words):
            shared = i < _SHARED
            color = mix(BLUE, SOFT, max(at("alike", 0.3) * shared, moved))
            if shared and row:
                color = mix(RED, color, at("again", 0.3))
            y = between(180 + row * 120, _MIDDLE - 25, moved)
            gap = 0 if shared else 30 * at("alike", 0.6) * (1 - gone)
            x = 112 + i * _WIDE + gap
            show = 1 - gone if row else 1.0
            cells(stage, x, y, [word], color, wide=_WIDE, high=_HIGH, show=show)
    count = f"{2 * _SHARED} words are computed for nothing"
    note(stage, count, 560, RED, at("again", 0.5) - gone)
    stage.box(46, _MIDDLE - 14, 28, 28, INK, radius=14, show=at("keep", 0.7))


def _numbers(stage: Stage, at: At) -> None:
    """What the cache saves."""
    note(stage, f"{_ASKED['requests']} questions, one system prompt", 180)
    for row, (name, color) in enumerate([("asked", SOFT), ("computed", BLUE)]):
        y = 270 + row * 120
        stage.text(280, y + 30, name, 28, anchor="rm")
        grown = at("numbers", 0.3 + 0.4 * row)
        length = 700 * _ASKED[name] / _ASKED["asked"]
        bar(stage, 310, y, length, 60, color, f"{_ASKED[name]:,}", grown=grown)
    note(stage, "same answers", 560, GREEN, at("end"))


def _marks(at: At) -> dict[int, tuple[Color, float]]:
    """Slots of the tree that are matched, or next to go."""
    marks: dict[int, tuple[Color, float]] = {}
    key, which = ("third", 2) if at.reached("third") else ("walk", 1)
    for i in range(_KNOWN[which] if not at.reached("lock") else 0):
        marks[i] = (GREEN, _matched(at, key, which, i))
    for i, slot in enumerate(_FREED):
        marks[slot] = (RED, at("full", 0.5 + 0.1 * i))
    return marks


def draw(stage: Stage, at: At) -> None:
    """Prompts, then the tree from snapshot to snapshot, then the count."""
    if at.reached("numbers"):
        _numbers(stage, at)
        return
    if at("node") < 1:
        _beginnings(stage, at)
        return
    _prompt(stage, at, 1, "walk", "third")
    _prompt(stage, at, 2, "third", "lock")
    steps = ["node", "split", "third", "lock", "evict"]
    new = max(i for i, key in enumerate(steps) if at.reached(key))
    after = {"third": 0.9, "lock": 0.3, "evict": 0.5}.get(steps[new], 0.1)
    part = at(steps[new], after) if new else 1.0
    _tree(stage, max(0, new - 1), new, part, _marks(at))
    locked = at("lock", 0.3)
    note(stage, "amber: locked by a running request", 130, AMBER, locked)
    gone = ", ".join(map(str, _FREED))
    note(stage, f"slots {gone} are free again", 592, RED, at("evict", 0.7))


FILM = film("radix", _FACTS, draw)
