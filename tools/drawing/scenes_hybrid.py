"""Pictures of a model some of whose layers keep a state."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"


@diagram("hybrid-prefix")
def hybrid_prefix(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A radix tree with two prompts that part after 300 tokens. Keys and "
            "values are known all the way down. States are known at three places "
            "only: where the two part, and one token before either ends. A third "
            "prompt that parts at 200 finds keys and values of 200 tokens and no "
            "state; it starts from zeros, and leaves a state at 200.",
            "一棵基数树，两个 prompt 在 300 个 token 之后分开。键和值一路都有；"
            "状态只有三处：分叉处，以及两个 prompt 各自结尾前一个 token 处。"
            "第三个 prompt 在 200 处离开，有 200 个 token 的键和值，却没有状态；"
            "它从零开始，并在 200 处留下一个状态。",
        ),
        height=250,
    )
    c.text(12, 18, say("keys and values", "键和值"), size=12, bold=True)
    c.box(12, 60, 210, 30, say("300 tokens", "300 个 token"), "blue", size=11)
    c.line(222, 75, 246, 47)
    c.line(222, 75, 246, 103)
    c.box(246, 32, 120, 30, say("the first's", "第一个的"), "blue", size=11)
    c.box(246, 88, 120, 30, say("the second's", "第二个的"), "blue", size=11)
    for x, y in ((222, 75), (360, 47), (360, 103)):
        c.box(x - 9, y - 9, 18, 18, "S", "green", size=11)
    c.text(380, 80, say("S: a state", "S：状态"), size=11, color=GREY)
    c.text(12, 152, say("a third prompt", "第三个 prompt"), size=12, bold=True)
    c.box(
        12,
        164,
        140,
        28,
        say("known, no state", "有键值，无状态"),
        "amber",
        size=11,
    )
    c.box(152, 164, 150, 28, say("its own", "自己的部分"), size=11)
    c.box(143, 169, 18, 18, "S", "green", size=11, dashed=True)
    c.text(
        12,
        218,
        say(
            "computes all of it from zeros, and leaves a state\n"
            "where it parts: the fourth starts from there",
            "全部从零算起，并在分叉处留下状态：\n第四个 prompt 就从那里开始",
        ),
        size=11,
        color=GREY,
    )
    return c


@diagram("hybrid-waves")
def hybrid_waves(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A prefill batch of three requests. The first starts from zeros and is "
            "cut twice, the second starts from a snapshot and is cut once, the "
            "third goes on from its row. First segments form the first wave, second "
            "ones the second, and so on. Every segment writes the row; where there "
            "is a cut, a snapshot too.",
            "一个预填充批，三个请求。第一个从零开始，切成三段；第二个从快照开始，"
            "切成两段；第三个从自己的行继续。各请求的第一段组成第一波，第二段组成第二波，"
            "依此类推。每一段都写回所在的行，切口处还另存一个快照。",
        ),
        height=230,
    )
    for index, x in enumerate((96, 236, 356)):
        c.text(
            x,
            20,
            say(f"wave {index}", f"第 {index} 波"),
            size=12,
            bold=True,
        )
    rows = (
        (say("zeros", "零"), "grey", ((96, 120), (236, 100), (356, 40))),
        (say("snapshot", "快照"), "green", ((96, 120), (236, 40))),
        (say("its row", "所在行"), "blue", ((96, 80),)),
    )
    for index, (source, kind, segments) in enumerate(rows):
        y = 36 + 52 * index
        c.box(8, y, 66, 30, source, kind, size=11)
        c.arrow(74, y + 15, 94, y + 15)
        for number, (x, width) in enumerate(segments):
            c.box(x, y, width, 30, say("tokens", "token"), "amber", size=11)
            if number + 1 < len(segments):
                c.box(x + width - 9, y + 24, 18, 16, "S", "green", size=10)
    c.text(
        8,
        208,
        say(
            "every segment writes its row; S: and a snapshot",
            "每段都写回所在行；S：另存一个快照",
        ),
        size=11,
        color=GREY,
    )
    return c
