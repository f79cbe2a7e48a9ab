"""A request's life: from the HTTP call to the last piece of text."""

from __future__ import annotations

from tools.videos.film import At, events, film
from tools.videos.parts import between, note, process
from tools.videos.stage import Point, Stage
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

_EVENTS = events("life")
_PROMPT, _STEPS, _PIECES = (_EVENTS[n] for n in ("prompt", "steps", "pieces"))
_FIRST = next(i for i, t in enumerate(_PROMPT) if t[1] == "What")
_QUESTION = _PROMPT[_FIRST : _FIRST + 7]
_TOKENS, _DECODES = len(_PROMPT), len(_STEPS) - 1
_LAYERS, _WORDS = _EVENTS["layers"], _EVENTS["vocabulary"]
_BEST, _SHARE = _EVENTS["likeliest"][0]
_PAGE = _EVENTS["page_size"]
_PROMISED = -(-(_TOKENS + _EVENTS["max_tokens"]) // _PAGE)

_FACTS = {
    "tokens": _TOKENS,
    "decodes": _DECODES,
    "layers": _EVENTS["layers"],
    "words": _EVENTS["vocabulary"],
    "best": _EVENTS["likeliest"][0][0],
    "share": _EVENTS["likeliest"][0][1],
    "kept": _EVENTS["kept_tokens"],
}

_BOXES: dict[str, tuple[float, float, float, Color]] = {
    "client": (56, 110, 170, SOFT),
    "API server": (306, 110, 200, BLUE),
    "tokenizer": (586, 110, 200, TEAL),
    "scheduler + engine": (866, 110, 358, VIOLET),
    "detokenizer": (586, 222, 200, TEAL),
}
_HIGH = 76
_WAYS: list[tuple[Point, Point]] = [
    ((226, 148), (306, 148)),
    ((506, 148), (586, 148)),
    ((786, 148), (866, 148)),
    ((920, 186), (786, 252)),
    ((586, 252), (450, 186)),
    ((306, 172), (226, 172)),
]


def _centre(name: str) -> Point:
    x, y, w, _ = _BOXES[name]
    return x + w / 2, y + _HIGH / 2


def _roads(stage: Stage, at: At) -> None:
    """The processes, and the request on its way between them."""
    lit = {
        "client": at.during("look", "http") + at.during("text", "stop"),
        "API server": at.during("http", "ids") + at.during("text", "stop"),
        "tokenizer": at.during("ids", "queue"),
        "scheduler + engine": at.during("queue", "sum"),
        "detokenizer": at.during("text", "stop"),
    }
    for start, end in _WAYS:
        stage.arrow(start, end, LINE, 3)
    for name, (x, y, w, color) in _BOXES.items():
        process(stage, x, y, w, _HIGH, name, color, lit=min(1, lit[name]))
    moves = [
        ("http", "client", "API server", "HTTP"),
        ("ids", "API server", "tokenizer", "text"),
        ("queue", "tokenizer", "scheduler + engine", "ids"),
    ]
    for key, first, last, message in moves:
        _packet(stage, at(key), first, last, message)


def _packet(stage: Stage, part: float, start: str, end: str, name: str) -> None:
    """A message between two processes."""
    if 0 < part < 1:
        (x, y), (x2, y2) = _centre(start), _centre(end)
        x, y = between(x, x2, part), between(y, y2, part)
        stage.label(x - 40, y - 19, 80, 38, name, 20, WHITE, INK)


def _request(stage: Stage, at: At) -> None:
    """What the client asks, and as what the API server gets it."""
    show, question = 1 - at("http"), f"“{_EVENTS['question']}”"
    stage.text(640, 380, question, 40, anchor="mm", show=at("look") * show)
    answer, part = f"“{_EVENTS['text']}”", at("look", 0.3) * show
    stage.text(640, 470, answer, 32, SOFT, anchor="mm", show=part)
    turn = f'{{"role": "user", "content": "{_EVENTS["question"]}"}}'
    body = ["POST /v1/chat/completions", f'{{"messages": [{turn}]}}']
    show = at("http") - at("ids")
    for i, line in enumerate(body):
        stage.text(80, 390 + 60 * i, line, 26, mono=True, show=show)
    checked = "fields, types, limits: checked"
    note(stage, checked, 550, GREEN, at("http", 0.6) * show)


def _numbers(stage: Stage, at: At) -> None:
    """The tokens of the question, then the request in the queue."""
    show = at("ids") - at("queue")
    for i, (number, text) in enumerate(_QUESTION):
        x, word = 206 + i * 124, text.replace(" ", "␣")
        part = at("ids", 0.25 + 0.05 * i) * show
        stage.label(x, 370, 120, 60, word, 28, tint(TEAL), TEAL, show=part)
        part = at("ids", 0.6 + 0.03 * i) * show
        stage.text(
            x + 60, 466, f"{number}", 28, anchor="mm", mono=True, show=part
        )
    total = f"{_TOKENS} tokens with the chat template"
    note(stage, total, 550, show=at("ids", 0.5) * show)
    show, color = at("queue", 0.3) - at("admit"), VIOLET
    stage.text(420, 430, "waiting", 28, SOFT, anchor="rm", show=show)
    stage.label(
        450, 390, 240, 80, "request 0", 30, tint(color), color, show=show
    )


def _pool(stage: Stage, at: At, tokens: int) -> None:
    """Pages of the KV pool, a cell a token."""
    show = at("admit")
    for i in range(4 * _PAGE):
        page, place = divmod(i, _PAGE)
        x, y = 150 + place * 32, 352 + page * 56
        fill = PALE
        if i < tokens:
            fill = BLUE if i < _TOKENS else AMBER
            fill = mix(fill, WHITE, 0.8)
            fill = mix(TEAL, fill, at("free") * 0.7)
        edge = mix(GREEN, LINE, at("admit", 0.6) * (page < _PROMISED))
        stage.box(x + 1, y, 30, 44, fill, edge, radius=4, width=2, show=show)
    for page in range(4):
        y = 374 + page * 56
        stage.text(136, y, f"page {page}", 20, SOFT, anchor="rm", show=show)
    stage.text(150, 330, "KV pool", 22, SOFT, show=show)


def _computed(at: At) -> int:
    """Tokens in the pool at this moment."""
    if not at.reached("prefill", 0.4):
        return 0
    steps = 0.55 * at.through("decode", 0.1) + 0.45 * at.through("text")
    return _TOKENS + round(steps * _DECODES)


def _side(stage: Stage, at: At, tokens: int) -> None:
    """To the right of the pool: what the step is about."""
    x = 720
    show = at("admit") - at("prefill")
    for i, text in enumerate(["a free row", "enough free pages"]):
        part = at("admit", 0.2 + 0.4 * i) * show
        stage.text(x, 380 + 60 * i, f"✓  {text}", 28, GREEN, show=part)
    show = at("prefill") - at("logits")
    stage.text(x, 380, f"prefill: {_TOKENS} tokens, one step", 28, show=show)
    part = at("keys") * show
    stage.text(x, 440, "a key and a value a token,", 26, BLUE, show=part)
    stage.text(x, 480, f"in each of {_LAYERS} layers", 26, BLUE, show=part)
    show = at("logits") - at("decode")
    for i, (text, share) in enumerate(_EVENTS["likeliest"]):
        y, part = 370 + 64 * i, at("logits", 0.15 + 0.1 * i) * show
        stage.text(x + 70, y + 22, text, 28, anchor="rm", show=part)
        color = mix(GREEN, SOFT, at("logits", 0.6)) if i == 0 else SOFT
        if part > 0:
            wide = 900 * share * part
            stage.box(x + 90, y, wide, 44, color, radius=4, show=show)
            stage.text(x + 104 + wide, y + 22, f"{share:.1%}", 24, show=part)
    show = at("decode") - at("sum")
    count = max(0, tokens - _TOKENS)
    stage.text(x, 380, f"decode step {count} of {_DECODES}", 28, show=show)
    said = "".join(_PIECES[: count + 1])
    half = said.rfind(" ", 0, 28) if len(said) > 28 else len(said)
    for i, part_of in enumerate([said[:half], said[half:].strip()]):
        stage.text(x, 440 + 44 * i, part_of, 28, BLUE, show=show)
    stage.text(x, 552, "end token", 26, RED, show=at("stop") - at("free"))
    kept = f"{_EVENTS['kept_tokens']} tokens kept for others"
    stage.text(x, 552, kept, 26, TEAL, show=at("free", 0.3) - at("sum"))


def _stream(stage: Stage, at: At) -> None:
    """Tokens on their way back to the client."""
    way = ["scheduler + engine", "detokenizer", "API server", "client"]
    names = ["token", "text", "event"]
    for i in range(4):
        part = 3 * at("text", 0.2 * i, 1.4) * (1 - at("stop"))
        leg = min(2, int(part))
        _packet(stage, part - leg, way[leg], way[leg + 1], names[leg])


def _sum(stage: Stage, at: At) -> None:
    """All steps of the request."""
    show = at("sum")
    for i in range(1 + _DECODES):
        color = mix(AMBER if i else BLUE, WHITE, 0.8)
        stage.box(720 + i * 38, 400, 34, 60, color, radius=4, show=show)
    stage.text(720, 500, "1 prefill", 26, BLUE, show=show)
    stage.text(870, 500, f"{_DECODES} decodes", 26, AMBER, show=show)


def draw(stage: Stage, at: At) -> None:
    """The road above, the station that matters below."""
    _roads(stage, at)
    _request(stage, at)
    _numbers(stage, at)
    tokens = _computed(at)
    _pool(stage, at, tokens)
    _side(stage, at, tokens)
    _stream(stage, at)
    _sum(stage, at)


FILM = film("life", _FACTS, draw)
