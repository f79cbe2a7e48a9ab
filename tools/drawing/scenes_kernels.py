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
            "每个 warp 负责一个 token：先读它的槽号，"
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
    c.text(300, 18, say("slots", "槽号"), bold=True)
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
