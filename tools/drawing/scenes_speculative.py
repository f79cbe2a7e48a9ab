"""Pictures of the chapter about drafts."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram


@diagram("draft-step")
def draft_step(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A request knows 3 1 4, of which 3 1 are in the cache. Guessed is 7 2 "
            "9. One step computes 4 7 2 9; the model chooses 7 2 5 8. Two drafts "
            "were right, 5 is the model's own token, 8 is void. The slot of 9 "
            "goes back.",
            "请求已知 3 1 4，其中 3 1 已在缓存里。草稿是 7 2 9。一步计算 4 7 2 9，"
            "模型选出 7 2 5 8。两个草稿正确，5 是模型自己的 token，8 作废，"
            "9 的槽位归还。",
        ),
        height=306,
    )
    x = 150
    c.text(12, 24, say("before", "之前"), bold=True)
    c.cells(x, 12, ["3", "1", "4"], ["green", "green", "plain"], w=38)
    c.text(280, 24, say("4: known, not cached", "4：已知，未缓存"), size=12)
    c.text(12, 70, say("guessed", "草稿"), bold=True)
    c.cells(x + 114, 58, ["7", "2", "9"], "amber", w=38)
    c.text(12, 116, say("computed", "计算"), bold=True)
    c.cells(x + 76, 104, ["4", "7", "2", "9"], "blue", w=38)
    c.text(12, 172, say("chosen after it", "其后所选"), bold=True)
    kinds = ["green", "green", "green", "grey"]
    c.cells(x + 76, 160, ["7", "2", "5", "8"], kinds, w=38)
    for at in range(4):
        c.arrow(x + 95 + 38 * at, 128, x + 95 + 38 * at, 159)
    c.text(12, 218, say("after", "之后"), bold=True)
    texts = ["3", "1", "4", "7", "2", "5"]
    c.cells(x, 206, texts, ["green"] * 5 + ["plain"], w=38)
    c.text(12, 264, say("slots", "槽位"), bold=True)
    owned = ["green"] * 5 + ["grey"]
    c.cells(x, 252, ["0", "1", "2", "3", "4", "5"], owned, w=38)
    c.text(390, 264, say("back", "归还"), "start", size=12)
    c.text(
        12,
        292,
        say(
            "cached_len 2 -> 5, device_len 3 -> 6",
            "cached_len 2 -> 5，device_len 3 -> 6",
        ),
        size=12,
    )
    return c


@diagram("verify-rows")
def verify_rows(say: Say) -> Canvas:
    c = Canvas(
        say(
            "The same seven tokens of two requests, A with three drafts and B "
            "with two. To the sampler each is a row; to attention either one "
            "stretch a request, or a row each.",
            "两个请求的同样七个 token：A 有三个草稿，B 有两个。对采样器来说每个都是"
            "一行；对注意力来说，或者每个请求一段，或者每个 token 一行。",
        ),
        height=250,
    )
    tokens = ["4", "7", "2", "9", "6", "6", "1"]
    kinds = ["blue"] * 4 + ["amber"] * 3
    x, w = 110, 44
    c.text(12, 30, say("tokens", "token"), bold=True)
    c.cells(x, 18, tokens, kinds, w=w)
    c.text(12, 90, say("one stretch\na request", "每个请求\n一段"), bold=True)
    c.box(x, 84, 4 * w, 30, say("A, 4 new tokens", "A，4 个新 token"), "blue")
    c.box(x + 4 * w, 84, 3 * w, 30, say("B, 3 new", "B，3 个"), "amber")
    c.text(12, 160, say("or a row\neach", "或每个\n一行"), bold=True)
    names = ["A1", "A2", "A3", "A4", "B1", "B2", "B3"]
    c.cells(x, 156, names, kinds, w=w, h=30)
    c.text(12, 222, say("sampled", "采样"), bold=True)
    c.cells(x, 210, ["7", "2", "5", "8", "6", "3", "1"], "green", w=w)
    for at in range(7):
        c.arrow(x + w * (at + 0.5), 187, x + w * (at + 0.5), 209)
        c.arrow(x + w * (at + 0.5), 43, x + w * (at + 0.5), 83)
    return c


@diagram("keep-or-replace")
def keep_or_replace(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Of four tokens the model wants 0.5, 0.3, 0.2 and 0; they are guessed "
            "with 0.2, 0.3, 0.1 and 0.4. What both have in common is kept, what "
            "was guessed too often is replaced by what was guessed too seldom.",
            "四个 token，模型的概率是 0.5、0.3、0.2 和 0，草稿的概率是 0.2、0.3、0.1 "
            "和 0.4。两者共有的部分保留；猜得太多的部分换成猜得太少的部分。",
        ),
        height=262,
    )
    wanted, guessed = (50, 30, 20, 0), (20, 30, 10, 40)
    scale, base = 3.2, 200
    for at in range(4):
        x = 60 + at * 92
        both = min(wanted[at], guessed[at])
        if both:
            h = both * scale
            c.box(x, base - h, 60, h, say("kept", "保留"), "green", size=12)
        more = wanted[at] - both
        if more:
            top = base - (both + more) * scale
            c.box(x, top, 60, more * scale, "p - q", "blue", mono=True, size=12)
        less = guessed[at] - both
        if less:
            top = base - (both + less) * scale
            c.box(
                x,
                top,
                60,
                less * scale,
                "q - p",
                "red",
                mono=True,
                size=12,
                dashed=True,
            )
        c.text(
            x + 30,
            214,
            f"p {wanted[at] / 100:.1f}",
            "middle",
            mono=True,
            size=12,
        )
        c.text(
            x + 30,
            232,
            f"q {guessed[at] / 100:.1f}",
            "middle",
            mono=True,
            size=12,
        )
    c.arrow(334, 60, 124, 50, dashed=True)
    c.text(
        12,
        252,
        say(
            "what is red is drawn again, from what is blue",
            "红色的部分重抽，从蓝色的部分里抽",
        ),
        size=12,
    )
    return c
