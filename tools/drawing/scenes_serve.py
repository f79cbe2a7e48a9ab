"""Pictures of part 3: processes, messages, text."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"


@diagram("processes")
def processes(say: Say) -> Canvas:
    c = Canvas(
        say(
            "The processes of a server: API server, tokenizer workers, one "
            "scheduler a rank, detokenizer, and the queues between them.",
            "服务器的进程：API 服务器、分词进程、每个 rank 一个调度器、"
            "反分词进程，以及它们之间的队列。",
        ),
        height=398,
    )
    c.box(130, 12, 180, 32, say("client (HTTP)", "客户端（HTTP）"), "plain")
    c.arrow(196, 44, 196, 78)
    c.arrow(244, 78, 244, 44)
    c.box(
        110,
        80,
        220,
        44,
        say("API server\n(FastAPI)", "API 服务器\n（FastAPI）"),
        "amber",
    )
    c.arrow(150, 124, 96, 178)
    c.text(14, 150, "TokenizeMsg", mono=True, size=11)
    c.box(14, 180, 180, 44, say("tokenizer\nworkers", "分词进程"), "green")
    c.arrow(344, 178, 296, 124)
    c.text(336, 150, "UserReply", mono=True, size=11)
    c.box(246, 180, 180, 44, say("detokenizer", "反分词进程"), "green")
    c.arrow(104, 224, 150, 284)
    c.text(24, 262, "UserMsg", mono=True, size=11)
    c.arrow(300, 284, 336, 224)
    c.text(334, 262, "DetokenizeMsg", mono=True, size=11)
    c.box(
        110,
        286,
        220,
        44,
        say(
            "scheduler, rank 0\n(engine, KV pool)",
            "调度器 rank 0\n（引擎、KV 池）",
        ),
        "blue",
    )
    c.arrow(220, 330, 220, 358, "PUB / SUB")
    c.box(
        110,
        360,
        220,
        28,
        say("scheduler, ranks 1 ...", "调度器 rank 1 …"),
        "blue",
        dashed=True,
    )
    return c


@diagram("one-request")
def one_request(say: Say) -> Canvas:
    c = Canvas(
        say(
            "The messages of one streamed request, from HTTP to the scheduler and "
            "back, and of its abort.",
            "一个流式请求的全部消息：从 HTTP 到调度器再返回，以及中止时的消息。",
        ),
        height=420,
    )
    columns = [
        (50, say("client", "客户端")),
        (152, "API"),
        (262, say("tokenizer", "分词")),
        (384, say("scheduler", "调度器")),
    ]
    for x, name in columns:
        c.box(x - 42, 10, 84, 28, name, "amber", size=12)
        c.line(x, 38, x, 410, dashed=True)
    x0, x1, x2, x3 = (x for x, _ in columns)
    rows: list[tuple[float, float, str]] = [
        (x0, x1, "POST"),
        (x1, x2, "TokenizeMsg"),
        (x2, x3, "UserMsg"),
        (x3, x2, "DetokenizeMsg"),
        (x2, x1, "UserReply"),
        (x1, x0, "data: ..."),
        (x3, x2, "DetokenizeMsg"),
        (x2, x1, "UserReply"),
        (x1, x0, "data: ..."),
    ]
    y = 64.0
    for start, end, name in rows:
        c.text((start + end) / 2, y - 9, name, "middle", mono=True, size=10.5)
        step = 3 if end > start else -3
        c.arrow(start + step, y, end - step, y)
        y += 30
    c.text(
        162,
        y + 2,
        say("the client goes away:", "客户端断开："),
        size=12,
        color="#c9504a",
    )
    y += 32
    c.text((x1 + x2) / 2, y - 9, "AbortMsg", "middle", mono=True, size=10.5)
    c.arrow(x1 + 3, y, x2 - 3, y, color="#c9504a")
    y += 30
    c.text(
        (x2 + x3) / 2, y - 9, "AbortBackendMsg", "middle", mono=True, size=10.5
    )
    c.arrow(x2 + 3, y, x3 - 3, y, color="#c9504a")
    return c


@diagram("detokenize")
def detokenize(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Incremental text: only a window of the last ids is decoded for each "
            "new token, and text that ends inside a character is held back.",
            "增量文本：每个新 token 只解码末尾一小段 id；"
            "停在字符中间的文本先扣住不发。",
        ),
        height=252,
    )
    c.text(14, 18, say("ids so far", "目前的 id"), bold=True)
    kinds = ["grey"] * 5 + ["blue"] * 3 + ["amber"]
    texts = ["", "", "", "", "", "", "", "", say("new", "新")]
    c.cells(14, 34, texts, kinds, w=44, h=28)
    c.arrow(234, 78, 408, 78)
    c.text(
        321,
        94,
        say("the window that is decoded", "要解码的窗口"),
        "middle",
        size=12,
    )
    c.text(
        14,
        78,
        say("sent, never decoded again", "已发出，不再解码"),
        size=12,
        color=GREY,
    )
    c.text(14, 128, say("text of the window", "窗口的文本"), bold=True)
    c.box(
        14, 146, 220, 28, say("was there before", "之前已有"), "blue", size=12
    )
    c.box(236, 146, 100, 28, say("new: send", "新的：发出"), "green", size=12)
    c.box(338, 146, 88, 28, say("half: hold", "半个：扣住"), "red", size=12)
    c.text(
        14,
        202,
        say(
            "The window begins where text is whole, so spaces and\n"
            "characters of several tokens come out right. At the end\n"
            "whatever was held back is sent.",
            "窗口从文本完整的地方开始，所以空格和跨 token 的\n"
            "字符都不会错。结束时把扣住的部分全部发出。",
        ),
        size=12,
        color=GREY,
    )
    return c


@diagram("life-cycle")
def life_cycle(say: Say) -> Canvas:
    c = Canvas(
        say(
            "How a server starts and ends: the port is taken first, children "
            "report when they are ready, and whoever dies takes all down.",
            "服务器的启动与结束：先占端口，子进程就绪后报告；任何一个进程死亡，全部一起退出。",
        ),
        height=360,
    )
    steps = [
        (say("parse and check the settings", "解析并检查设置"), "plain"),
        (say("bind the port", "绑定端口"), "plain"),
        (say("make the socket folder", "创建套接字目录"), "plain"),
        (say("start the children", "启动子进程"), "amber"),
        (say("all say: ready", "全部报告就绪"), "amber"),
        (say("serve", "提供服务"), "green"),
        (say("stop: answer, join, remove", "停止：回复、等待、清理"), "plain"),
    ]
    for number, (text, kind) in enumerate(steps):
        y = 12 + number * 48
        c.box(14, y, 226, 34, text, kind)
        if number + 1 < len(steps):
            c.arrow(127, y + 34, 127, y + 47)
    failures = [
        (0, say("one line, exit 2", "一行说明，退出码 2")),
        (1, say("port taken: exit 1", "端口被占：退出码 1")),
        (4, say("a child dies: its reason", "子进程死亡：给出原因")),
        (5, say("a child dies: exit 1", "子进程死亡：退出码 1")),
    ]
    for number, text in failures:
        y = 12 + number * 48 + 17
        c.arrow(240, y, 262, y, color="#c9504a")
        c.box(264, y - 17, 166, 34, text, "red", size=12)
    return c
