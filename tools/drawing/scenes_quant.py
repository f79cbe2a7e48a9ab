"""Pictures of part 5: weights in fewer bits."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"


@diagram("quantised-row")
def quantised_row(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A row of weights in two groups. Each has a scale, its largest weight "
            "over the largest value, and becomes integers. Below, the bits of one "
            "number in bf16, fp8, int8 and int4.",
            "一行权重分成两组，每组有一个缩放系数，即最大的权重除以最大的取值，组内各数变成整数。"
            "下面是一个数在 bf16、fp8、int8 和 int4 中的位。",
        ),
        height=354,
    )
    weights = ["0.50", "-1.0", "0.24", "0.07", ".020", "-.01", "0.00", ".004"]
    values = ["4", "-8", "2", "1", "-8", "4", "0", "-2"]
    kinds = ["blue"] * 4 + ["green"] * 4
    c.text(20, 16, say("a row, in groups of 4", "一行，每 4 个一组"), size=12)
    c.cells(20, 28, weights, kinds, w=50, h=26)
    c.arrow(120, 56, 120, 82, "÷ 0.125")
    c.arrow(320, 56, 320, 82, "÷ -0.0025")
    c.cells(20, 84, values, kinds, w=50, h=26)
    c.text(
        20,
        124,
        say(
            "the values, and one scale (float32) a group",
            "取值，以及每组一个缩放系数（float32）",
        ),
        size=12,
        color=GREY,
    )
    rows = [
        ("bf16", [(1, "s"), (8, "exponent"), (7, "mantissa")], "16"),
        ("fp8", [(1, "s"), (4, "exponent"), (3, "mant.")], "8"),
        ("int8", [(8, "-128 ... 127")], "8"),
        ("int4", [(4, "-8 ... 7")], "4"),
    ]
    zh = {
        "s": "符",
        "exponent": "指数",
        "mantissa": "尾数",
        "mant.": "尾数",
        "-128 ... 127": "-128 … 127",
        "-8 ... 7": "-8 … 7",
    }
    for number, (name, parts, bits) in enumerate(rows):
        y, x = 152 + 48 * number, 76.0
        c.text(20, y + 14, name, mono=True, size=12)
        for width, label in parts:
            kind = {"s": "grey", "exponent": "amber"}.get(label, "blue")
            c.box(x, y, 18 * width, 28, say(label, zh[label]), kind, size=11)
            x += 18 * width
        c.text(
            x + 8,
            y + 14,
            say(f"{bits} bits", f"{bits} 位"),
            size=11,
            color=GREY,
        )
    c.text(
        20,
        342,
        say(
            "An exponent gives small numbers small steps.",
            "有指数位，小的数步长就小。",
        ),
        size=12,
        color=GREY,
    )
    return c
