"""A layer of experts: Triton's against torch's, and against the memory's own speed.

python tools/bench_experts.py

The shapes are those of Qwen3-30B-A3B. Few tokens read many experts, each for a row or
two, so what counts is how fast weights are read: the copy bandwidth is measured first,
in the same run. Many tokens compute, and what counts is products a second.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import typer  # noqa: E402

from tools.bench_kernels import (  # noqa: E402
    copy_bandwidth,
    graph_seconds,
    seconds,
)
from tools.stagekit import measured  # noqa: E402

EXPERTS, TOPK, HIDDEN, MIDDLE = 128, 8, 2048, 768


@dataclass
class Layer:
    """Weights in bfloat16 and the logits of a router that favours nobody."""

    w1: torch.Tensor
    w2: torch.Tensor

    def run(self, backend: str, x: torch.Tensor, gates: torch.Tensor) -> None:
        from minisgl.moe import create_moe_backend

        create_moe_backend(backend, x.device).forward(
            x, self.w1, self.w2, gates, TOPK, True, "silu", False
        )


def make_layer() -> Layer:
    """Random weights on the GPU, 1.2 GB."""

    def draw(*shape: int) -> torch.Tensor:
        made = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        return made.mul_(shape[-1] ** -0.5)

    return Layer(
        draw(EXPERTS, 2 * MIDDLE, HIDDEN), draw(EXPERTS, HIDDEN, MIDDLE)
    )


def show(layer: Layer, tokens: int, best: float) -> None:
    """Print a row: what is read and computed, and how fast either way."""
    x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
    gates = torch.randn(tokens, EXPERTS, device="cuda", dtype=torch.bfloat16)
    read = len(gates.topk(TOPK).indices.unique())
    moved = read * 3 * MIDDLE * HIDDEN * x.element_size()
    products = 2 * tokens * TOPK * 3 * MIDDLE * HIDDEN
    fused = graph_seconds(lambda: layer.run("fused", x, gates), 10)
    plain = seconds(lambda: layer.run("torch", x, gates), 5)
    cells = [
        measured(fused * 1e6, "us", 0),
        measured(100 * moved / fused / best, "%", 0),
        measured(products / fused / 1e12, "TFLOP/s", 0),
        measured(plain * 1e6, "us", 0),
    ]
    row = "".join(f"{cell:>14}" for cell in cells)
    print(f"{tokens:6}{read:14}{row}")


def main(
    sizes: Annotated[
        str, typer.Option(help="Tokens in a batch, with commas between.")
    ] = "1,8,64,256,2048,8192",
) -> None:
    """Measure one layer with each number of tokens."""
    if not torch.cuda.is_available():
        raise SystemExit("error: there is no CUDA device")
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    best = copy_bandwidth()
    print(f"copy bandwidth {measured(best / 1e12, 'TB/s', 2)}\n")
    heads = ("Triton", "of copy", "", "torch")
    row = "".join(f"{head:>14}" for head in heads)
    print(f"tokens  experts read{row}")
    layer = make_layer()
    for size in sizes.split(","):
        show(layer, int(size), best)


if __name__ == "__main__":
    typer.run(main)
