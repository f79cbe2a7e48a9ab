"""Pictures of a cache on two tiers, and of pages that come while layers run."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"


@diagram("two-tiers")
def two_tiers(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A radix tree on two tiers. Nodes near the root are on the device, most "
            "of them on the host as well; below them are nodes on the host only. A "
            "match ends on the device after one node and on the host after two.",
            "两层上的基数树。靠近根的节点在设备上，多数在主机上也有副本；"
            "再往下是只在主机上的节点。一次匹配在设备上止于第一个节点，"
            "在主机上止于第二个节点。",
        ),
        height=300,
    )
    c.box(190, 12, 60, 26, "root", "grey", mono=True, size=12)
    c.arrow(205, 38, 120, 62)
    c.arrow(235, 38, 320, 62)
    c.box(60, 64, 116, 40, say("system prompt", "系统提示"), "green", size=12)
    c.box(264, 64, 116, 40, say("a question", "某个问题"), "blue", size=12)
    c.arrow(100, 104, 76, 138)
    c.arrow(136, 104, 204, 138)
    c.arrow(322, 104, 322, 138)
    c.line(12, 121, 428, 121, dashed=True)
    c.box(16, 140, 116, 40, say("document A", "文档 A"), "amber", size=12)
    c.box(146, 140, 116, 40, say("document B", "文档 B"), "amber", size=12)
    c.box(276, 140, 92, 40, say("its answer", "它的回答"), "amber", size=12)
    c.text(428, 52, say("device", "设备"), "end", GREY, size=12)
    c.text(428, 190, say("host only", "仅主机"), "end", GREY, size=12)
    kinds = {
        "green": say("on both tiers", "两层都有"),
        "blue": say("on the device", "只在设备"),
        "amber": say("on the host", "只在主机"),
    }
    for at, (kind, text) in enumerate(kinds.items()):
        c.box(14 + at * 140, 212, 18, 18, "", kind)
        c.text(38 + at * 140, 221, text, size=12)
    c.text(
        14,
        250,
        say(
            "A prompt of system prompt and document A finds the first\n"
            "on the device. The second gets new pages there, and its\n"
            "content comes from the host.",
            "提示由系统提示和文档 A 组成时，前者在设备上命中；\n"
            "后者在设备上分到新的页，内容从主机取回。",
        ),
        size=12,
        color=GREY,
    )
    return c


@diagram("layer-overlap")
def layer_overlap(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Time lines of the copies and of the forward. If the forward waits for "
            "all layers, it begins when the last copy ends. If each layer waits for "
            "its own pages, layer 1 is computed while the pages of layer 2 come.",
            "复制与前向的时间线。若前向等所有层到齐，它要等最后一份复制结束才开始；"
            "若每层只等自己的页，第 1 层计算时第 2 层的页正在传来。",
        ),
        height=286,
    )
    copies, forward = say("copies", "复制"), say("forward", "前向")
    c.text(12, 18, say("all layers first", "先等所有层"), bold=True)
    _lanes(c, 34, copies, forward, [86 + 58 * 4 + 22 * i for i in range(4)], 20)
    c.text(
        12, 132, say("each layer its own pages", "每层只等自己的页"), bold=True
    )
    starts = [86 + 58 * (i + 1) for i in range(4)]
    _lanes(c, 148, copies, forward, starts, 20)
    c.box(12, 232, 18, 18, "", "amber")
    c.text(36, 241, say("pages of a layer come", "一层的页正在传来"), size=12)
    c.box(220, 232, 18, 18, "", "blue")
    c.text(244, 241, say("the layer computes", "这一层在计算"), size=12)
    c.text(
        12,
        268,
        say(
            "With many new tokens a layer takes longer than its copy:\n"
            "then only the first copy is waited for.",
            "新 token 很多时，一层的计算比它的复制更久：这时只需等第一份复制。",
        ),
        size=12,
        color=GREY,
    )
    return c


def _lanes(
    c: Canvas, y: int, copies: str, forward: str, starts: list[int], w: int
) -> None:
    """Four copies one after the other, and the layers at their times."""
    c.text(12, y + 14, copies, size=12, color=GREY)
    c.text(12, y + 48, forward, size=12, color=GREY)
    for layer in range(4):
        name = str(layer + 1)
        c.box(86 + 58 * layer, y, 56, 28, name, "amber", mono=True)
        c.box(starts[layer], y + 34, w, 28, name, "blue", mono=True)
