"""Pictures of part 4: kernels, and experts."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"


@diagram("store-kernel")
def store_kernel(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Each warp takes one token: it reads the token's slot, then its 32 "
            "lanes copy the key row and the value row, 16 bytes each.",
            "每个 warp 负责一个 token：先读它的槽位，"
            "再由 32 个 lane 各搬 16 字节，复制键行和值行。",
        ),
        height=338,
    )
    c.text(14, 18, say("one product: q, k, v", "一个乘积：q、k、v"), bold=True)
    for row in range(3):
        y = 34 + row * 34
        c.text(14, y + 12, f"t{row}", mono=True)
        c.box(40, y, 120, 24, "q", "grey", mono=True)
        c.box(160, y, 56, 24, "k", "amber", mono=True)
        c.box(216, y, 56, 24, "v", "green", mono=True)
    c.text(300, 18, say("slots", "槽位"), bold=True)
    for row, slot in enumerate(("5", "1", "4")):
        y = 34 + row * 34
        c.box(300, y, 40, 24, slot, "plain", mono=True)
        c.text(352, y + 12, f"warp {row}", size=12, color=GREY)
    c.text(
        14, 150, say("a warp's 32 lanes", "一个 warp 的 32 个 lane"), bold=True
    )
    lanes = ["0", "1", "2", "3", "...", "30", "31"]
    c.cells(14, 166, lanes, "blue", w=44)
    c.text(
        330,
        178,
        say("16 bytes each", "各 16 字节"),
        size=12,
        color=GREY,
    )
    c.arrow(168, 192, 168, 222)
    c.text(
        180,
        206,
        say("neighbours by neighbours", "相邻搬相邻"),
        size=12,
        color=GREY,
    )
    c.text(14, 238, say("pool: keys, values", "池：键、值"), bold=True)
    for row, (name, kind) in enumerate((("k", "amber"), ("v", "green"))):
        y = 254 + row * 34
        c.text(14, y + 12, name, mono=True)
        texts = ["", "t1", "", "", "t2", "t0", ""]
        kinds = [kind if text else "grey" for text in texts]
        c.cells(40, y, texts, kinds, w=52)
    for place in range(7):
        c.text(66 + 52 * place, 328, str(place), "middle", GREY, size=11)
    return c


@diagram("one-source")
def one_source(say: Say) -> Canvas:
    c = Canvas(
        say(
            "One CUDA source, two compilers: nvcc makes it for the GPU, g++ with "
            "a simulator header for the CPU; the result must equal torch's.",
            "同一份 CUDA 源码，两个编译器：nvcc 编译给 GPU，"
            "g++ 加模拟器头文件编译给 CPU；结果都要等于 torch。",
        ),
        height=300,
    )
    c.box(150, 12, 140, 32, "store.cu", "amber", mono=True)
    c.box(150, 62, 140, 32, "device.h", "plain", mono=True)
    c.arrow(220, 44, 220, 60)
    c.arrow(180, 94, 110, 124)
    c.arrow(260, 94, 330, 124)
    c.box(20, 126, 180, 32, "cuda_runtime.h", "plain", mono=True)
    c.box(240, 126, 180, 32, "sim/cuda.h", "plain", mono=True)
    c.arrow(110, 158, 110, 182, "nvcc")
    c.arrow(330, 158, 330, 182, "g++")
    c.box(
        20,
        184,
        180,
        44,
        say("GPU", "GPU"),
        "green",
    )
    c.box(
        240,
        184,
        180,
        44,
        say("CPU: a fiber\na thread", "CPU：每个线程\n一根纤程"),
        "blue",
    )
    c.arrow(110, 228, 180, 258)
    c.arrow(330, 228, 260, 258)
    c.box(
        110,
        260,
        220,
        28,
        say("= two lines of torch", "= 两行 torch"),
        "plain",
    )
    return c


_CHOICES = ((0, 2), (2, 1), (0, 2), (2, 0), (2, 1))
_KINDS = ("blue", "amber", "green")
_PLACES = (
    (0, ("0", "4", "7", "")),
    (1, ("3", "9", "", "")),
    (2, ("1", "2", "5", "6")),
    (2, ("8", "", "", "")),
)


@diagram("expert-blocks")
def expert_blocks(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Five tokens choose two of three experts each; the ten pairs are "
            "sorted by expert and padded to four blocks of four places, each "
            "with one expert.",
            "五个 token 各选三个专家中的两个；十个（token，选择）对按专家排序，"
            "填充成四个各有四个位置的块，每块只属于一个专家。",
        ),
        height=318,
    )
    c.text(
        14, 18, say("token: its two experts", "token：选中的专家"), bold=True
    )
    for token, chosen in enumerate(_CHOICES):
        x = 14 + token * 84
        c.text(x, 44, f"t{token}", mono=True, size=12)
        for choice, expert in enumerate(chosen):
            c.box(
                *(x + 22 + 27 * choice, 32, 27, 24),
                f"e{expert}",
                _KINDS[expert],
                mono=True,
                size=12,
            )
            pair = str(2 * token + choice)
            c.text(x + 35.5 + 27 * choice, 66, pair, "middle", GREY, size=11)
    c.text(14, 66, say("pair", "对"), color=GREY, size=11)
    c.arrow(220, 78, 220, 106)
    c.text(
        232,
        92,
        say("sorted by expert, padded", "按专家排序，再填充"),
        size=12,
        color=GREY,
    )
    c.text(14, 122, say("blocks", "块"), bold=True)
    for block, (expert, pairs) in enumerate(_PLACES):
        x = 14 + block * 106
        kinds = [_KINDS[expert] if pair else "grey" for pair in pairs]
        c.cells(x, 138, list(pairs), kinds, w=24)
        c.arrow(x + 48, 164, x + 48, 194)
        text = f"x[p//2] W{expert}"
        c.box(x, 196, 96, 30, text, _KINDS[expert], mono=True, size=12)
        c.arrow(x + 48, 226, x + 48, 252)
    c.box(
        14,
        254,
        414,
        26,
        say("a row of the result for each pair", "每一对得到结果中的一行"),
        "plain",
    )
    c.text(
        14,
        300,
        say(
            "expert of each block: 0 1 2 2; places used: 16; pairs: 10",
            "各块的专家：0 1 2 2；用去 16 个位置；共 10 对",
        ),
        size=12,
        color=GREY,
    )
    return c
