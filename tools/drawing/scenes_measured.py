"""Pictures of how speed is measured, and charts of what was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"
ROOT = Path(__file__).resolve().parents[2]


@diagram("request-times")
def request_times(say: Say) -> Canvas:
    c = Canvas(
        say(
            "The times of one streamed answer: it waits in the queue, its prompt "
            "is computed, then pieces come with gaps between them.",
            "一个流式回答的各段时间：先排队，再计算 prompt，然后一段一段地输出，"
            "段与段之间有间隔。",
        ),
        height=190,
    )
    c.box(14, 70, 92, 34, say("queue", "排队"), "grey", size=12)
    c.box(106, 70, 92, 34, say("prefill", "预填充"), "blue", size=12)
    starts = (198, 236, 274, 352, 390)
    ends = (236, 274, 352, 390, 424)
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        c.box(start, 70, end - start, 34, str(number + 2), "green", size=12)
    for x in (198, *ends):
        c.line(x, 104, x, 118)
    c.arrow(14, 148, 14, 108)
    c.text(14, 160, say("asked", "提出请求"), size=12, color=GREY)
    c.arrow(198, 148, 198, 122)
    c.text(198, 160, say("token 1", "token 1"), "middle", size=12, color=GREY)
    c.line(14, 52, 198, 52)
    c.text(106, 40, "TTFT", "middle", size=12, bold=True)
    for start, end in zip(starts, ends, strict=True):
        c.line(start + 2, 52, end - 2, 52)
    c.text(313, 40, "ITL", "middle", size=12, bold=True)
    c.text(
        313,
        130,
        say("a stutter: others' prompts", "卡顿：别人的 prompt"),
        "middle",
        size=11,
        color="#c9504a",
    )
    c.line(14, 18, 424, 18)
    c.text(219, 10, say("latency", "总延迟"), "middle", size=12, bold=True)
    c.text(
        424,
        160,
        say("last token", "最后一个 token"),
        "end",
        size=12,
        color=GREY,
    )
    return c


@diagram("ablation-cpu")
def ablation_cpu(say: Say) -> Canvas:
    report = json.loads(
        (ROOT / "docs/outputs/ablation-cpu.json").read_text(encoding="utf-8")
    )
    names = {
        "nothing": say("everything on", "全部打开"),
        "radix cache": say("no radix cache", "无 Radix Cache"),
        "chunked prefill": say("no chunks", "不分块"),
        "overlap": say("no overlap", "无重叠"),
        "pages of several tokens": say("page size 1", "页大小 1"),
    }
    rows = [row for row in report["rows"] if row["without"] in names]
    c = Canvas(
        say(
            "Tokens a second and the rarest gaps between tokens, with one part of "
            "the engine switched off at a time.",
            "每次关闭引擎的一个部件时，每秒 token 数和最长的 token 间隔。",
        ),
        height=40 + 34 * len(rows),
    )
    c.text(130, 16, say("tokens a second", "每秒 token 数"), size=12, bold=True)
    c.text(310, 16, say("gap p99, ms", "间隔 p99（毫秒）"), size=12, bold=True)
    bars(c, rows, "tokens/s", 130, names)
    bars(c, rows, "gap p99 ms", 310, {})
    return c


def bars(
    c: Canvas,
    rows: list[dict[str, Any]],
    column: str,
    x: float,
    names: dict[str, str],
) -> None:
    """A bar for each row, the longest 76 wide, with its number behind it."""
    longest = max(row[column] for row in rows)
    for number, row in enumerate(rows):
        y, value = 34 + 34 * number, row[column]
        if names:
            c.text(12, y + 11, names[row["without"]], size=12)
        kind = "green" if number == 0 else "blue"
        width = max(2, round(76 * value / longest))
        c.box(x, y, width, 22, "", kind)
        c.text(x + width + 6, y + 11, f"{value:,.0f}", size=12, color=GREY)


@diagram("metrics-road")
def metrics_road(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A scrape: the API server has counters of its own and asks the "
            "scheduler for its queue and pages, by the road of all messages.",
            "一次抓取：API 服务器有自己的计数，队列和页则沿着消息的路去问调度器。",
        ),
        height=300,
    )
    c.box(14, 14, 130, 34, "Prometheus", "plain", size=12)
    c.box(296, 14, 130, 34, say("clients", "客户端"), "plain", size=12)
    c.box(14, 92, 412, 74, "", "amber")
    c.text(160, 106, say("API server", "API 服务器"), size=12, bold=True)
    c.box(26, 120, 118, 36, "/metrics", "plain", mono=True, size=12)
    c.box(
        160,
        120,
        130,
        36,
        say("counters,\nhistograms", "计数器、\n直方图"),
        "green",
        size=11,
    )
    c.box(306, 120, 110, 36, say("answers", "回答"), "plain", size=12)
    c.arrow(70, 48, 70, 118)
    c.text(78, 70, say("every 15 s", "每 15 秒"), size=11, color=GREY)
    c.arrow(360, 118, 360, 50)
    c.text(352, 70, say("tokens", "token"), "end", size=11, color=GREY)
    c.arrow(160, 138, 146, 138)
    c.arrow(306, 138, 292, 138)
    c.box(110, 246, 220, 40, say("scheduler", "调度器"), "blue")
    c.arrow(85, 166, 150, 244)
    c.text(22, 206, "StatusMsg", mono=True, size=11)
    c.arrow(290, 244, 360, 168)
    c.text(342, 206, "UserReply", mono=True, size=11)
    c.text(
        220,
        206,
        say("running, waiting,\npages", "运行、等待、\n页"),
        "middle",
        size=11,
        color=GREY,
    )
    return c
