"""What step 0's way of writing operators costs, at the sizes of a small model."""

import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from time import perf_counter

STAGES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(STAGES.parent))

import torch
import torch.nn.functional as F
import typer
from torch import nn

from minisgl.layers import LinearQKVMerged, LinearReplicated, get_rope
from tools.stagekit import measured

rotate = run_path(str(STAGES / "ch00-step0" / "engine.py"))["rotate"]
E, HEADS, KV_HEADS, DIM, LAYERS = 1024, 16, 8, 128, 28  # as Qwen3-0.6B has


def best(run: Callable[[], object], times: int = 20) -> str:
    """The fastest of some runs: what else the machine does only adds to it."""
    spent = []
    for _ in range(times):
        start = perf_counter()
        run()
        spent.append(1e6 * (perf_counter() - start))
    return measured(min(spent), "us", 0)


@torch.inference_mode()
def main() -> None:
    """Time one decode token on the CPU in float32."""
    print("angles and rotation of q and k, 28 layers")
    q, k = torch.randn(1, HEADS * DIM), torch.randn(1, KV_HEADS * DIM)
    heads = [p.view(-1, 1, DIM) for p in (q, k)]
    rope, at = get_rope(DIM, DIM, 4096, 1e6), torch.tensor([1000])
    step0 = best(lambda: [rotate(p, 1000, 1e6) for p in heads * LAYERS])
    print("  computed each time", step0)
    table = best(lambda: [rope.forward(at, q, k) for _ in range(LAYERS)])
    print("  looked up         ", table)

    print("q, k and v of one token")
    merged = LinearQKVMerged(E, DIM, HEADS, KV_HEADS, has_bias=False)
    merged.weight.normal_()
    sizes = [HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM]
    x, parts = torch.randn(1, E), merged.weight.split(sizes)
    three = best(lambda: [F.linear(x, part) for part in parts])
    print("  three products    ", three)
    print("  one product       ", best(lambda: merged.forward(x)))

    print("a matrix of 1024 x 4096, before its weights are read")
    module = best(lambda: nn.Linear(E, 4096, bias=False))
    print("  nn.Linear         ", module)
    ours = best(lambda: LinearReplicated(E, 4096, has_bias=False))
    print("  LinearReplicated  ", ours)


if __name__ == "__main__":
    typer.run(main)
