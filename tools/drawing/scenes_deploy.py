"""Pictures of several servers behind one address."""

from __future__ import annotations

import json
from math import log10
from pathlib import Path
from typing import Any

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"
ROOT = Path(__file__).resolve().parents[2]
KINDS = {"random": "amber", "least-loaded": "blue", "prefix": "green"}


@diagram("scale-out")
def scale_out(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A request goes through Serve's proxy and the router to the server of "
            "one replica; beside each server a watcher speaks for it.",
            "请求经过 Serve 的代理和路由器，到达一个副本的服务器；每个服务器旁边"
            "有一个看护者替它说话。",
        ),
        height=352,
    )
    c.box(150, 12, 140, 28, say("clients", "客户端"), "plain", size=12)
    c.arrow(220, 40, 220, 62)
    c.box(
        130,
        64,
        180,
        28,
        say("Serve's HTTP proxy", "Serve 的 HTTP 代理"),
        "grey",
        size=12,
    )
    c.arrow(220, 92, 220, 114)
    c.box(70, 116, 300, 62, "", "amber")
    c.text(82, 130, say("router", "路由器"), size=12, bold=True)
    c.box(82, 142, 86, 28, say("fleet", "机群"), "plain", size=12)
    c.box(177, 142, 86, 28, say("policy", "策略"), "plain", size=12)
    c.box(272, 142, 86, 28, say("forwarder", "转发器"), "plain", size=12)
    c.text(
        14, 204, say("beat: 1 a second", "心跳：每秒一次"), size=11, color=GREY
    )
    c.text(426, 204, "HTTP, SSE", "end", size=11, color=GREY)
    for number in range(3):
        x = 14 + 140 * number
        c.box(x, 226, 132, 114, "", "plain", dashed=True)
        c.text(
            x + 66,
            331,
            say(f"replica {number}", f"副本 {number}"),
            "middle",
            size=11,
            color=GREY,
        )
        c.box(
            x + 6,
            250,
            50,
            68,
            say("Serve's\nactor:\nwatcher", "Ray 的\nactor：\n看护者"),
            "grey",
            size=11,
        )
        c.box(
            x + 70,
            250,
            56,
            68,
            say("server,\nas in\nch. 15", "第 15 章\n的\n服务器"),
            "blue",
            size=11,
        )
        c.line(x + 56, 284, x + 70, 284)
        c.arrow(x + 31, 248, 104 + 18 * number, 174, dashed=True)
        c.arrow(296 + 20 * number, 172, x + 98, 248)
    return c


@diagram("routing-policies")
def routing_policies(say: Say) -> Canvas:
    path = ROOT / "docs/outputs/routing-policies.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    c = Canvas(
        say(
            "Hit rate and p99 of the time to the first token of three policies, "
            "from 1 to 1,000 simulated replicas.",
            "三种策略在 1 到 1000 个模拟副本上的命中率，以及首 token 时间的 p99。",
        ),
        height=262,
    )
    most = max(row["p99 ms"] for row in rows) / 1e3
    panels = (
        (44, say("hit rate", "命中率"), "hit rate", 1.0, 1.0),
        (262, say("p99, seconds", "p99（秒）"), "p99 ms", 1e-3, most),
    )
    for x, title, column, unit, top in panels:
        c.text(x, 14, title, size=12, bold=True)
        plot(c, x, rows, column, unit, top)
    for number, (name, kind) in enumerate(KINDS.items()):
        c.box(44 + 130 * number, 236, 14, 14, "", kind)
        words = {
            "random": say("random", "随机"),
            "least-loaded": say("least loaded", "负载最小"),
            "prefix": say("prefix", "前缀"),
        }
        c.text(64 + 130 * number, 243, words[name], size=12)
    return c


def plot(
    c: Canvas,
    x: float,
    rows: list[dict[str, Any]],
    column: str,
    unit: float,
    top: float,
) -> None:
    """Points over the replicas, whose axis is logarithmic; 164 x 170."""
    low, width, height = 200, 164, 168
    c.line(x, low, x + width, low)
    c.line(x, low - height, x, low)
    for share in (0, 0.5, 1):
        y = low - share * height
        c.text(x - 5, y, f"{share * top:.3g}", "end", size=11, color=GREY)
    for replicas in (1, 10, 100, 1000):
        at = x + width * log10(replicas) / 3
        c.line(at, low, at, low + 4)
        anchor = "end" if replicas == 1000 else "middle"
        c.text(at, low + 14, f"{replicas:,}", anchor, size=11, color=GREY)
    for name, kind in KINDS.items():
        before = None
        for row in (row for row in rows if row["policy"] == name):
            at = x + width * log10(row["replicas"]) / 3
            y = low - height * row[column] * unit / top
            if before is not None:
                c.line(*before, at, y)
            before = (at, y)
        for row in (row for row in rows if row["policy"] == name):
            at = x + width * log10(row["replicas"]) / 3
            y = low - height * row[column] * unit / top
            c.box(max(x, at - 4), max(4, y - 4), 8, 8, "", kind)
