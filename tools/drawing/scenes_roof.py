"""Pictures of what hardware allows, and of who waits for whom."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"


@diagram("gpu-roof")
def gpu_roof(say: Say) -> Canvas:
    c = Canvas(
        say(
            "The roof over operations per byte: a slope, where the memory is the "
            "limit, then a level part, where the multipliers are. Decoding attention "
            "is far down the slope, products of a small batch too, prompts are under "
            "the level part. Below, steps: while the device has much to read, the "
            "host is ready in time; with short steps the device waits for it.",
            "横轴是每字节的运算次数，上面是屋顶：先是斜坡，受限于内存；"
            "再是平顶，受限于乘法器。解码的注意力在斜坡的低处，小批的乘法也在那里，"
            "prompt 在平顶之下。下半部分是各步：设备要读的东西多时，主机来得及；"
            "步很短时，设备要等主机。",
        ),
        height=330,
    )
    _roof(c, say)
    _lanes(c, say)
    return c


def _roof(c: Canvas, say: Say) -> None:
    """The roof, and what stands below it."""
    c.text(
        12, 16, say("operations a second", "每秒运算次数"), size=12, bold=True
    )
    c.arrow(24, 176, 24, 30)
    c.arrow(24, 176, 428, 176)
    c.text(
        428,
        190,
        say("operations per byte", "每字节的运算次数"),
        "end",
        GREY,
        size=11,
    )
    for at in (-1, 0, 1):
        c.line(34, 164 + at, 260, 48 + at)
        c.line(260, 48 + at, 424, 48 + at)
    c.line(260, 48, 260, 176, dashed=True)
    c.text(
        124,
        74,
        say("the memory's\nlimit", "受限于\n内存"),
        "middle",
        GREY,
        size=11,
    )
    c.text(
        346,
        34,
        say("the multipliers' limit", "受限于乘法器"),
        "middle",
        GREY,
        size=11,
    )
    c.box(
        84,
        148,
        118,
        24,
        say("attention, decoding", "解码的注意力"),
        "amber",
        size=11,
    )
    c.box(
        168,
        102,
        88,
        40,
        say("products of\na small batch", "小批的\n乘法"),
        size=11,
    )
    c.box(308, 58, 92, 24, say("prompts", "prompt"), "green", size=11)


def _lanes(c: Canvas, say: Say) -> None:
    """Long steps, which hide the host, and short ones, which do not."""
    c.text(12, 218, say("long steps", "长的步"), size=12, bold=True)
    c.text(12, 244, say("host", "主机"), size=11)
    c.text(12, 270, say("device", "设备"), size=11)
    kinds = ("blue", "amber", "green")
    for at, kind in enumerate(kinds):
        c.box(58 + at * 52, 233, 26, 22, str(at + 1), kind, size=11)
        c.box(84 + at * 52, 259, 52, 22, str(at + 1), kind, size=11)
    c.text(256, 218, say("short steps", "短的步"), size=12, bold=True)
    for at, kind in enumerate(kinds):
        c.box(256 + at * 46, 233, 44, 22, str(at + 1), kind, size=11)
        c.box(302 + at * 46, 259, 20, 22, str(at + 1), kind, size=11)
        if at < 2:
            c.box(322 + at * 46, 259, 26, 22, "", "grey", dashed=True)
    c.text(
        256,
        300,
        say("grey: the device waits", "灰色：设备在等主机"),
        size=11,
        color=GREY,
    )
    c.text(
        12,
        300,
        say("the next step is\nready in time", "下一步\n来得及准备好"),
        size=11,
        color=GREY,
    )
