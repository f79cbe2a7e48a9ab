"""Pictures of part 4: a model over several ranks."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"


@diagram("tensor-parallel")
def tensor_parallel(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A layer over two ranks: each has half of the heads and half of the "
            "MLP's middle; two sums over the ranks join their results.",
            "两个 rank 上的一层：各有一半的头和 MLP 中间的一半，两次求和把结果合起来。",
        ),
        height=424,
    )
    c.text(112, 14, "rank 0", "middle", bold=True)
    c.text(328, 14, "rank 1", "middle", bold=True)
    left, right, width = 20, 236, 184

    def both(y: float, texts: tuple[str, str], kind: str) -> None:
        for x, text in zip((left, right), texts, strict=True):
            c.box(x, y, width, 30, text, kind, size=12)

    def down(y: float) -> None:
        for x in (112, 328):
            c.arrow(x, y, x, y + 16)

    def total(y: float) -> None:
        c.box(left, y, 400, 28, "all-reduce", "amber", size=12)

    both(28, (say("x, whole", "完整的 x"),) * 2, "plain")
    down(58)
    qkv = say("q k v: heads {}", "q k v：头 {}")
    both(76, (qkv.format("0, 1"), qkv.format("2, 3")), "blue")
    down(106)
    both(124, (say("attention", "注意力"),) * 2, "green")
    down(154)
    both(172, (say("o_proj: input cut", "o_proj：切输入"),) * 2, "blue")
    down(202)
    total(220)
    down(248)
    both(266, (say("gate, up: output cut", "gate、up：切输出"),) * 2, "blue")
    down(296)
    both(314, (say("down: input cut", "down：切输入"),) * 2, "blue")
    down(344)
    total(362)
    c.text(
        220,
        408,
        say(
            "Norms and the residual stream are whole on every rank.",
            "归一化和残差流在每个 rank 上都是完整的。",
        ),
        "middle",
        size=12,
        color=GREY,
    )
    return c


@diagram("vocab-parallel")
def vocab_parallel(say: Say) -> Canvas:
    c = Canvas(
        say(
            "A vocabulary of 10 over 4 ranks: 3 rows each, 2 of the last rank "
            "stand for no token; gathered logits lose them again.",
            "10 个 token 的词表分给 4 个 rank：每个 3 行，最后两行不对应任何 token，"
            "收集起来的 logits 再把它们去掉。",
        ),
        height=190,
    )
    numbers = [str(i) for i in range(10)] + ["-", "-"]
    for rank in range(4):
        x = 18 + rank * 104
        c.text(x + 45, 18, f"rank {rank}", "middle", bold=True)
        cells = numbers[3 * rank : 3 * rank + 3]
        kinds = ["grey" if text == "-" else "blue" for text in cells]
        c.cells(x, 32, cells, kinds, w=30)
        c.arrow(x + 45, 58, x + 45, 82)
    c.box(18, 84, 402, 28, "all-gather", "amber", size=12)
    c.arrow(220, 112, 220, 130)
    c.cells(70, 132, numbers[:10], "green", w=30)
    c.text(
        220,
        174,
        say(
            "10 logits, the same bits on every rank",
            "10 个 logits，每个 rank 上逐位相同",
        ),
        "middle",
        size=12,
        color=GREY,
    )
    return c
