"""Pictures of part 2: who runs when, and on which pages."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"


@diagram("request-life")
def request_life(say: Say) -> Canvas:
    c = Canvas(
        say(
            "The life of a request in the scheduler: refused or queued, admitted "
            "with a row and reserved pages, prefilled, decoded, ended.",
            "请求在调度器中的一生：被拒绝或排队，拿到行和预留的页后准入，预填充，解码，结束。",
        ),
        height=384,
    )
    c.box(150, 12, 140, 34, "UserMsg", "plain", mono=True)
    c.arrow(220, 46, 220, 74)
    c.box(
        120, 76, 200, 40, say("can it ever fit?", "有可能放得下吗？"), "amber"
    )
    c.arrow(320, 96, 352, 96, say("no", "否"), dx=-8, dy=-12)
    c.box(354, 78, 76, 36, say("refused", "拒绝"), "red")
    c.arrow(220, 116, 220, 144, say("yes", "是"))
    c.box(
        90,
        146,
        260,
        40,
        say("pending_list (waits)", "pending_list（等待）"),
        "grey",
    )
    c.arrow(
        220,
        186,
        220,
        220,
        say("a row is free, pages suffice", "有空行，页够用"),
    )
    c.box(
        90,
        222,
        260,
        40,
        say("prefill step", "预填充步"),
        "blue",
    )
    c.arrow(220, 262, 220, 290, say("first token", "第一个 token"))
    c.box(
        90,
        292,
        260,
        40,
        say("running_reqs: decode steps", "running_reqs：解码步"),
        "green",
    )
    c.arrow(220, 332, 220, 350)
    c.text(
        220,
        362,
        say(
            "end token, length or abort: row and pages go back",
            "结束符、长度上限或中止：归还行和页",
        ),
        "middle",
        size=12,
    )
    for y in (166, 242, 312):
        c.line(90, y, 60, y, dashed=True)
    c.line(60, 166, 60, 352, dashed=True)
    c.arrow(60, 340, 60, 354, dashed=True)
    c.text(12, 204, say("abort", "中止"), size=12, color=GREY)
    return c


@diagram("admission")
def admission(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Admission counts pages that running requests may still need as taken; "
            "cached pages nobody uses count as available.",
            "准入时，把运行中的请求将来可能需要的页算作已占用；没人使用的缓存页算作可用。",
        ),
        height=244,
    )
    parts = [
        (110, "blue", say("held by\nrunning", "运行中\n占用")),
        (90, "amber", say("reserved\nfor them", "为其\n预留")),
        (100, "green", say("cached,\nevictable", "缓存，\n可驱逐")),
        (112, "plain", say("free", "空闲")),
    ]
    c.text(14, 20, say("all pages of the pool", "池中的全部页"), bold=True)
    x = 14
    for w, kind, text in parts:
        c.box(x, 38, w, 48, text, kind, size=12)
        x += w
    c.line(214, 92, 214, 128, dashed=True)
    c.line(426, 92, 426, 128, dashed=True)
    c.arrow(220, 110, 424, 110)
    c.text(
        320,
        130,
        say("what a new request may count on", "新请求可以指望的页"),
        "middle",
        size=12,
    )
    c.box(
        214,
        152,
        150,
        34,
        say("prompt + max_tokens", "prompt + max_tokens"),
        "plain",
        size=12,
    )
    c.text(14, 169, say("it fits: admitted", "放得下：准入"), size=12)
    c.text(
        14,
        212,
        say(
            "The whole answer is reserved at admission, so no\n"
            "decode step ever lacks a page.",
            "准入时就为整个回答预留，\n所以任何解码步都不会缺页。",
        ),
        size=12,
        color=GREY,
    )
    return c


@diagram("radix-split")
def radix_split(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A radix tree before and after a second prompt that shares the first "
            "four tokens: the node is split, and the shared part stands once.",
            "插入一个前四个 token 相同的 prompt，基数树的前后变化："
            "节点被拆开，共享部分只存一份。",
        ),
        height=330,
    )
    c.text(14, 18, say("before", "之前"), bold=True)
    c.box(30, 34, 60, 26, "root", "grey", mono=True, size=12)
    c.arrow(60, 60, 60, 92)
    c.cells(14, 94, ["5", "1", "9", "4", "7", "2"], "blue", w=24)
    c.text(
        14,
        140,
        say("one node, 6 tokens,\n6 slots", "一个节点，6 个 token，\n6 个槽"),
        size=12,
        color=GREY,
    )
    c.line(186, 12, 186, 250, dashed=True)
    c.text(200, 18, say("after 5 1 9 4 8", "插入 5 1 9 4 8 之后"), bold=True)
    c.box(284, 34, 60, 26, "root", "grey", mono=True, size=12)
    c.arrow(314, 60, 314, 92)
    c.cells(266, 94, ["5", "1", "9", "4"], "green", w=24)
    c.text(370, 106, say("shared", "共享"), size=12, color=GREY)
    c.arrow(296, 118, 244, 160)
    c.arrow(332, 118, 372, 160)
    c.cells(216, 162, ["7", "2"], "blue", w=24)
    c.cells(360, 162, ["8"], "amber", w=24)
    c.text(
        200,
        214,
        say("the old rest", "原来的后半"),
        size=12,
        color=GREY,
    )
    c.text(336, 214, say("the new rest", "新的后半"), size=12, color=GREY)
    c.text(
        14,
        272,
        say(
            "The second request computed its first four tokens only\n"
            "if it did not find them. If both did, its row of the page\n"
            "table now points to the kept slots; its own are freed.",
            "第二个请求若没有命中，会把前四个 token 也算一遍；\n"
            "此时它的页表行改指保留下来的槽，自己那份槽释放。",
        ),
        size=12,
        color=GREY,
    )
    return c


@diagram("chunked-prefill")
def chunked_prefill(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Above: a long prompt in one step stops two running requests for its "
            "whole length. Below: in four chunks, with decode steps between them.",
            "上：长 prompt 一步算完，两个运行中的请求一直停着。"
            "下：分四块，中间穿插解码步。",
        ),
        height=262,
    )
    d = say("decode", "解码")
    c.text(14, 18, say("whole prompt", "整段 prompt"), bold=True)
    c.box(14, 34, 34, 36, "", "green")
    c.box(50, 34, 264, 36, say("prefill of 8,192", "预填充 8192"), "blue")
    c.box(316, 34, 34, 36, "", "green")
    c.box(352, 34, 34, 36, "", "green")
    c.arrow(50, 84, 314, 84)
    c.text(
        182,
        98,
        say("running requests get nothing", "运行中的请求得不到 token"),
        "middle",
        size=12,
        color="#c9504a",
    )
    c.text(14, 130, say("chunks of 2,048", "每块 2048"), bold=True)
    x = 14
    for number in range(4):
        c.box(x, 146, 34, 36, "", "green")
        c.box(x + 36, 146, 64, 36, f"{number + 1}/4", "blue", mono=True)
        x += 102
    c.arrow(50, 196, 112, 196)
    c.text(
        14,
        216,
        say("a token after every chunk", "每块之后得到一个 token"),
        size=12,
        color="#3d9a63",
    )
    c.box(14, 234, 18, 18, "", "green")
    c.text(38, 243, d, size=12)
    c.box(120, 234, 18, 18, "", "blue")
    c.text(144, 243, say("prompt tokens", "prompt token"), size=12)
    return c


@diagram("overlap")
def overlap(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Time lines of host and device. Without overlap the device waits "
            "while the host reads tokens and prepares; with overlap the host "
            "prepares the next batch while the device computes.",
            "主机与设备的时间线。不重叠时，主机读 token、准备下一批，设备在等；"
            "重叠时，设备计算的同时主机已在准备下一批。",
        ),
        height=300,
    )
    host, device = say("host", "主机"), say("device", "设备")

    def lane(y: int, name: str) -> None:
        c.text(12, y + 15, name, size=12, color=GREY)

    c.text(12, 18, say("normal_loop", "normal_loop"), mono=True, bold=True)
    lane(32, host)
    lane(66, device)
    x = 66
    for number in range(3):
        c.box(x, 32, 42, 30, say("prep", "准备"), "amber", size=12)
        c.box(x + 44, 66, 60, 30, f"{number + 1}", "blue", mono=True)
        if number < 2:
            c.box(x + 106, 32, 18, 30, "", "green")
        x += 126
    c.text(12, 136, "overlap_loop", mono=True, bold=True)
    lane(150, host)
    lane(184, device)
    c.box(66, 150, 42, 30, say("prep", "准备"), "amber", size=12)
    x = 110
    for number in range(5):
        c.box(x, 184, 60, 30, f"{number + 1}", "blue", mono=True)
        if number < 4:
            at = x + 20 if number else x + 2
            c.box(at, 150, 38, 30, say("prep", "准备"), "amber", size=12)
            if number:
                c.box(x + 2, 150, 16, 30, "", "green")
        x += 62
    c.box(12, 234, 18, 18, "", "amber")
    c.text(
        36, 243, say("choose and prepare a batch", "选出并准备一批"), size=12
    )
    c.box(12, 258, 18, 18, "", "green")
    c.text(
        36,
        267,
        say("read tokens, reply, free", "读 token、回复、释放"),
        size=12,
    )
    c.box(240, 234, 18, 18, "", "blue")
    c.text(264, 243, say("forward and sample", "前向与采样"), size=12)
    c.text(
        12,
        288,
        say(
            "The price: batch n+1 is chosen before n's tokens are known.",
            "代价：选第 n+1 批时，第 n 批的 token 还不知道。",
        ),
        size=12,
        color=GREY,
    )
    return c
