"""Pictures of the chapters that go beyond upstream."""

from __future__ import annotations

from tools.drawing.canvas import Canvas
from tools.drawing.registry import Say, diagram

GREY = "#5a6072"


@diagram("mask-in-overlap")
def mask_in_overlap(say: Say) -> Canvas:
    c = Canvas(
        say(
            "Two steps on host and device: the host launches the model's part of "
            "step N+1, waits for token N, makes the mask while the device "
            "computes, and launches the sampling.",
            "主机和设备上的两步：主机启动第 N+1 步的模型部分，等待 token N，"
            "在设备计算时做好掩码，再启动采样。",
        ),
        height=230,
    )
    c.text(12, 58, say("host", "主机"), size=12, bold=True)
    c.text(12, 146, say("device", "设备"), size=12, bold=True)
    c.box(66, 40, 74, 36, say("launch\nmodel", "启动\n模型"), "blue", size=11)
    c.box(
        144,
        40,
        62,
        36,
        say("wait for\ntoken N", "等待\ntoken N"),
        "grey",
        size=11,
    )
    c.box(
        210, 40, 62, 36, say("accept,\nmask", "推进、\n掩码"), "amber", size=11
    )
    c.box(
        276, 40, 62, 36, say("launch\nsampling", "启动\n采样"), "blue", size=11
    )
    c.box(342, 40, 86, 36, say("replies of N", "回复 N"), "plain", size=11)
    c.box(
        12,
        166,
        126,
        36,
        say("step N: model", "第 N 步：模型"),
        "green",
        size=11,
    )
    c.box(142, 166, 58, 36, say("sample", "采样"), "green", size=11)
    c.box(
        204,
        166,
        156,
        36,
        say("step N+1: model", "第 N+1 步：模型"),
        "green",
        size=11,
    )
    c.box(364, 166, 64, 36, say("sample", "采样"), "green", size=11)
    c.arrow(104, 76, 214, 164)
    c.arrow(198, 164, 178, 78)
    c.arrow(312, 76, 380, 164)
    c.text(94, 120, say("token N", "token N"), size=11, color=GREY)
    c.text(330, 108, say("mask", "掩码"), size=11, color=GREY)
    return c
