"""Pictures of part 4: how an answer is computed faster, and by more than one."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

_PAGES = {"A": ["5", "2"], "B": ["0", "3", "7"], "C": ["1", "6", "4"]}
_KINDS = {"A": "blue", "B": "amber", "C": "green"}
_LENGTHS = {"A": 6, "B": 11, "C": 9}


@diagram("page-forms")
def page_forms(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Requests A, B and C hold pages 5 2, 0 3 7 and 1 6 4. FlashInfer "
            "takes one list of all pages with the borders in it; flash-attn "
            "takes a table with a row for each request.",
            "请求 A、B、C 分别持有页 5 2、0 3 7 和 1 6 4。"
            "FlashInfer 接受所有页的一个列表和其中的边界；"
            "flash-attn 接受每个请求一行的表。",
        ),
        height=392,
    )
    c.text(12, 20, say("tokens in pages of 4", "每页 4 个 token"), bold=True)
    for row, (name, pages) in enumerate(_PAGES.items()):
        y = 38 + row * 30
        c.text(12, y + 12, name, bold=True)
        for at, page in enumerate(pages):
            filled = min(_LENGTHS[name] - 4 * at, 4)
            kinds = [_KINDS[name]] * filled + ["grey"] * (4 - filled)
            x = 60 + at * 122
            c.text(x - 16, y + 12, page, mono=True, size=12)
            c.cells(x, y, [""] * 4, kinds, w=23)
    c.text(12, 148, "FlashInfer", bold=True)
    flat = [(page, name) for name, all_ in _PAGES.items() for page in all_]
    c.text(12, 178, "indices", mono=True, size=12)
    c.cells(130, 166, [p for p, _ in flat], [_KINDS[n] for _, n in flat], w=34)
    c.text(12, 226, "cu_pages", mono=True, size=12)
    for at, border in zip(range(4), (0, 2, 5, 8), strict=True):
        x = 100 + 60 + at * 60
        c.box(x, 214, 34, 24, str(border), mono=True, size=12)
        c.arrow(x + 17, 214, 130 + 34 * border, 192, dashed=True)
    c.text(12, 256, "last_page_len", mono=True, size=12)
    for at, (name, kept) in enumerate(zip("ABC", (2, 3, 1), strict=True)):
        c.box(190 + at * 60, 246, 34, 22, str(kept), _KINDS[name], mono=True)
    c.text(12, 298, "flash-attn", bold=True)
    c.text(130, 298, "page_table", mono=True, size=12)
    c.text(280, 298, "cache_seqlens", mono=True, size=12)
    for row, (name, pages) in enumerate(_PAGES.items()):
        y = 310 + row * 25
        texts = pages + ["?"] * (3 - len(pages))
        kinds = [_KINDS[name]] * len(pages) + ["grey"] * (3 - len(pages))
        c.cells(130, y, texts, kinds, w=34)
        c.box(300, y, 40, 24, str(_LENGTHS[name]), _KINDS[name], mono=True)
    return c


@diagram("plan-in-stream")
def plan_in_stream(say: Say) -> Canvas:
    c = Canvas(
        say(
            "While the device runs batch 1, the host prepares batch 2. The plan "
            "of batch 2 is copied in the engine's stream, after the last kernel "
            "that reads the plan of batch 1.",
            "设备运行第 1 批时，主机准备第 2 批。第 2 批的计划在引擎的流里拷贝，"
            "排在最后一个读取第 1 批计划的内核之后。",
        ),
        height=250,
    )
    c.text(12, 22, say("host", "主机"), bold=True)
    c.box(60, 40, 76, 26, say("prepare 1", "准备 1"), "blue", size=12)
    c.box(140, 40, 60, 26, say("plan 1", "计划 1"), "blue", size=12)
    c.box(206, 40, 76, 26, say("prepare 2", "准备 2"), "amber", size=12)
    c.box(286, 40, 60, 26, say("plan 2", "计划 2"), "amber", size=12)
    c.text(12, 116, say("stream", "流"), bold=True)
    c.box(160, 132, 48, 26, say("copy", "拷贝"), "blue", size=12)
    c.box(212, 132, 110, 26, say("layers of 1", "第 1 批各层"), "blue", size=12)
    c.box(326, 132, 48, 26, say("copy", "拷贝"), "amber", size=12)
    c.box(378, 132, 54, 26, say("of 2", "第 2 批"), "amber", size=12)
    c.arrow(170, 66, 182, 130)
    c.arrow(318, 66, 348, 130)
    c.line(60, 100, 430, 100, dashed=True)
    c.text(
        12, 196, say("one buffer, one plan", "一个缓冲区，一份计划"), bold=True
    )
    c.box(184, 208, 142, 26, say("plan 1", "计划 1"), "blue", size=12)
    c.box(350, 208, 82, 26, say("plan 2", "计划 2"), "amber", size=12)
    c.line(338, 158, 338, 236, dashed=True)
    return c


@diagram("graph-replay")
def graph_replay(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Launched one by one, small kernels wait for the host between them. "
            "Replayed, they follow one another; the inputs are copied to the "
            "places that the recording reads.",
            "逐个启动时，小内核之间要等主机；重放时它们一个接一个。"
            "输入先拷贝到录制时读取的位置。",
        ),
        height=306,
    )
    c.text(12, 20, say("launched", "逐个启动"), bold=True)
    c.text(12, 48, say("host", "主机"), size=12)
    c.text(12, 82, say("device", "设备"), size=12)
    for at in range(6):
        x = 70 + at * 60
        c.box(x, 36, 50, 24, say("launch", "启动"), "blue", size=11)
        c.box(x + 40, 70, 18, 24, "", "amber")
        c.arrow(x + 46, 60, x + 48, 69)
    c.text(12, 126, say("replayed", "重放"), bold=True)
    c.text(12, 154, say("host", "主机"), size=12)
    c.text(12, 188, say("device", "设备"), size=12)
    c.box(70, 142, 50, 24, say("copy", "拷贝"), "blue", size=11)
    c.box(124, 142, 50, 24, say("replay", "重放"), "blue", size=11)
    c.box(112, 176, 18, 24, "", "green")
    for at in range(6):
        c.box(168 + at * 20, 176, 18, 24, "", "amber")
    c.arrow(110, 166, 118, 175)
    c.arrow(164, 166, 174, 175)
    c.text(12, 236, say("batch", "批"), size=12)
    c.text(12, 280, say("buffer", "缓冲区"), size=12)
    names = ["input_ids", "positions", "out_loc"]
    for at, name in enumerate(names):
        x = 70 + at * 88
        c.box(x, 224, 80, 24, name, "plain", mono=True, size=12)
        c.box(x, 268, 80, 24, name, "green", mono=True, size=12)
        c.arrow(x + 40, 248, x + 40, 267)
    c.arrow(326, 280, 352, 280)
    c.box(356, 268, 76, 24, "logits", "green", mono=True, size=12)
    return c


@diagram("graph-padding")
def graph_padding(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Three requests are filled up to a recorded size of four with a "
            "dummy, whose row and page are outside of what is handed out.",
            "三个请求用一个占位请求补到录制过的大小 4；"
            "占位请求的行和页不在可分配的范围内。",
        ),
        height=232,
    )
    c.text(12, 20, say("recorded: 1 2 4 8", "已录制：1 2 4 8"), bold=True)
    kinds = ["blue", "amber", "green", "grey"]
    texts = ["A", "B", "C", say("dummy", "占位")]
    for at, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        c.box(70 + at * 84, 40, 76, 26, text, kind, dashed=kind == "grey")
    c.text(12, 53, say("batch", "批"), size=12)
    c.text(12, 111, say("rows", "行"), size=12)
    rows = ["2", "0", "1", "4"]
    for at, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
        c.box(92 + at * 84, 98, 32, 26, row, kind, mono=True)
        c.arrow(108 + at * 84, 66, 108 + at * 84, 97)
    c.text(12, 169, say("pages", "页"), size=12)
    owners = ["blue", "amber", "amber", "plain", "green", "plain", "plain"]
    for at, kind in enumerate(owners):
        c.box(70 + at * 36, 156, 34, 26, str(at), kind, mono=True)
    c.box(362, 156, 40, 26, "7", "grey", mono=True, dashed=True)
    c.arrow(376, 124, 382, 155)
    c.line(340, 140, 340, 212, dashed=True)
    c.text(70, 206, say("num_pages = 7", "num_pages = 7"), mono=True, size=12)
    c.text(350, 206, say("one more", "多一页"), size=12)
    return c
