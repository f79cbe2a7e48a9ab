"""Pictures of part 0 and part 1: how an answer is computed."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram


@diagram("prefill-decode")
def prefill_decode(say: Say) -> Canvas:
    c = Canvas(
        say(
            "The prefill runs five prompt tokens at once; each decode step runs "
            "one token and the cache grows by one.",
            "预填充一次算完五个 prompt token；"
            "每个解码步只算一个 token，缓存随之增加一格。",
        ),
        height=316,
    )
    steps = [
        (say("prefill", "预填充"), ["9", "4", "7", "7", "2"], 5, "31"),
        (say("decode", "解码"), ["31"], 6, "8"),
        (say("decode", "解码"), ["8"], 7, say("2 = end", "2 = 结束")),
    ]
    c.text(14, 18, say("step", "步"), color="#5a6072", size=12)
    c.text(84, 18, say("computes", "计算"), color="#5a6072", size=12)
    c.text(
        84,
        34,
        say("cache afterwards", "之后的缓存"),
        color="#5a6072",
        size=12,
    )
    for row, (name, ids, cached, chosen) in enumerate(steps):
        y = 58 + row * 88
        c.text(14, y + 12, name, bold=True)
        c.cells(84, y, ids, "amber")
        kinds = ["blue"] * (cached - len(ids)) + ["green"] * len(ids)
        c.cells(84, y + 34, [""] * cached, kinds)
        c.arrow(84 + 26 * len(ids) + 6, y + 12, 290, y + 12)
        c.box(296, y, 130, 24, f"argmax -> {chosen}", "plain", size=12)
        if row < 2:
            c.line(360, y + 24, 360, y + 68, dashed=True)
            c.line(360, y + 68, 112, y + 68, dashed=True)
            c.arrow(112, y + 68, 97, y + 86, dashed=True)
    return c


@diagram("request-counters")
def request_counters(say: Say) -> Canvas:
    c = Canvas(
        say(
            "The three counters of a request: cached_len, device_len and "
            "max_device_len, before and after a prefill and a decode step.",
            "请求的三个计数：cached_len、device_len、max_device_len，"
            "以及它们在预填充和解码之后的变化。",
        ),
        height=232,
    )
    rows = [
        (say("new", "刚到"), 0, 5),
        (say("prefilled", "预填充后"), 5, 6),
        (say("one decode", "解码一步"), 6, 7),
    ]
    for number, (name, cached, device) in enumerate(rows):
        y = 52 + number * 46
        c.text(12, y + 12, name)
        kinds = ["blue"] * cached + ["amber"] * (device - cached)
        kinds += ["grey"] * (9 - device)
        c.cells(92, y, [""] * 9, kinds, w=30)
        c.text(372, y + 12, f"{cached} / {device} / 9", mono=True, size=12)
    c.text(372, 28, "cached /\ndevice / max", size=10, color="#5a6072")
    for x, kind, text in (
        (12, "blue", say("in the cache", "已在缓存中")),
        (142, "amber", say("to compute", "待计算")),
        (264, "grey", say("may still come", "还可能生成")),
    ):
        c.box(x, 200, 18, 18, "", kind)
        c.text(x + 26, 209, text, size=12)
    return c


@diagram("page-table")
def page_table(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Two requests, their rows of the page table, and the pages of the KV "
            "pool to which the entries point. Request A holds pages 0 and 4, "
            "request B pages 1 and 2.",
            "两个请求、它们在页表中的行，以及表项指向的 KV 池页。"
            "请求 A 持有第 0、4 页，请求 B 持有第 1、2 页。",
        ),
        height=330,
    )
    c.text(12, 18, say("position", "位置"), size=12, color="#5a6072")
    for column in range(7):
        c.text(
            130 + column * 38,
            18,
            str(column),
            "middle",
            "#5a6072",
            size=12,
        )
    slots = {
        "A": ["0", "1", "2", "3", "16", "17", ""],
        "B": ["4", "5", "6", "7", "8", "9", "10"],
    }
    ids = {
        "A": ["9", "4", "7", "7", "2", "31", ""],
        "B": ["51", "8", "22", "6", "13", "40", "7"],
    }
    for row, (name, kind) in enumerate((("A", "blue"), ("B", "amber"))):
        y = 34 + row * 66
        c.text(12, y + 12, say(f"page table {name}", f"页表 {name}"), size=12)
        kinds = [kind if s else "grey" for s in slots[name]]
        c.cells(111, y, slots[name], kinds, w=38)
        c.text(
            12, y + 38, say(f"token pool {name}", f"token 池 {name}"), size=12
        )
        c.cells(111, y + 26, ids[name], "plain", w=38)
    c.text(
        110,
        190,
        say("KV pool: pages of 4 slots", "KV 池：每页 4 个槽"),
        bold=True,
    )
    owners = ["AAAA", "BBBB", "BBB.", "....", "AA.."]
    for page, holds in enumerate(owners):
        x = 12 + page * 84
        kinds = [{"A": "blue", "B": "amber", ".": "grey"}[h] for h in holds]
        texts = [str(page * 4 + i) for i in range(4)]
        c.cells(x, 226, texts, kinds, w=19.5)
        c.text(
            x + 39, 262, say(f"page {page}", f"第 {page} 页"), "middle", size=12
        )
    c.arrow(125, 84, 60, 222, dashed=True)
    c.arrow(285, 84, 365, 222, dashed=True)
    c.text(
        12,
        294,
        say(
            "A's tokens 0-3 lie in page 0, 4 and 5 in page 4.\n"
            "Rows stay in order; pages need not be neighbours.",
            "A 的 token 0–3 在第 0 页，4、5 在第 4 页。\n行内按位置排列，页不必相邻。",
        ),
        size=12,
        color="#5a6072",
    )
    return c


@diagram("flat-batch")
def flat_batch(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A flat batch of one prompt of four tokens and two decoding requests; "
            "each new token attends to all slots of its own request.",
            "扁平的批：一个四 token 的 prompt 和两个正在解码的请求；"
            "每个新 token 只看自己请求的槽。",
        ),
        height=284,
    )
    c.text(12, 20, say("new tokens of the step", "这一步的新 token"), bold=True)
    kinds = ["blue"] * 4 + ["amber", "green"]
    c.cells(60, 36, ["A0", "A1", "A2", "A3", "B6", "C2"], kinds, w=44)
    rows = [
        ("A", "blue", 0, 4, 1),
        ("B", "amber", 6, 1, 5),
        ("C", "green", 2, 1, 6),
    ]
    c.text(12, 92, say("what they read", "它们读取的内容"), bold=True)
    for number, (name, kind, cached, new, _) in enumerate(rows):
        y = 108 + number * 38
        c.text(20, y + 12, name, mono=True, bold=True)
        total = cached + new
        kinds = ["grey"] * cached + [kind] * new
        texts = [f"{name}{i}" for i in range(total)]
        c.cells(60, y, texts, kinds, w=44)
    c.box(12, 236, 18, 18, "", "grey")
    c.text(38, 245, say("already in the KV pool", "已在 KV 池中"), size=12)
    c.text(
        12,
        270,
        say(
            "No padding between requests; only attention knows the borders.",
            "请求之间没有填充；只有注意力知道边界在哪里。",
        ),
        size=12,
        color="#5a6072",
    )
    return c


@diagram("sampling-cuts")
def sampling_cuts(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Sampling: probabilities are sorted, each limit keeps a head of the "
            "row, and one random number picks a place in the cumulative sum.",
            "采样：概率排序后，每个限制保留行首的一段，一个随机数在累积和中选定位置。",
        ),
        height=260,
    )
    probs = [0.40, 0.30, 0.15, 0.10, 0.05]
    x, total = 14.0, 412.0
    for number, p in enumerate(probs):
        w = total * p
        kind = "blue" if number < 3 else "grey"
        c.box(x, 46, w, 34, f"{p:.2f}" if p > 0.05 else "", kind, size=12)
        x += w
    c.text(14, 26, say("sorted probabilities", "排序后的概率"), bold=True)
    edge = 14 + total * 0.85
    c.line(edge, 40, edge, 126, dashed=True)
    c.arrow(14, 104, edge, 104)
    c.text(
        200,
        120,
        say("kept by top_k = 3: 0.85", "top_k = 3 保留：0.85"),
        size=12,
    )
    at = 14 + total * 0.425
    c.arrow(at, 196, at, 84, color="#c9504a")
    c.text(
        at + 8,
        180,
        say("u = 0.5, times 0.85 = 0.425", "u = 0.5，乘 0.85 得 0.425"),
        size=12,
    )
    c.text(
        14,
        226,
        say(
            "It falls into the second token. One random number\n"
            "decides a row, so a row's draw is its own affair.",
            "落在第二个 token 上。一行只用一个随机数，\n所以每行的抽取互不影响。",
        ),
        size=12,
        color="#5a6072",
    )
    return c
