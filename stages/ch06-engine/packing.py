"""The products of a decode step with plain weights and with packed ones."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F

from minisgl.layers.packed import can_pack, pack_weight, packed_linear
from tools.stagekit import measured, run

# [out, in] of the products of a layer of SmolLM2-135M, and its head.
LAYER = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
LAYERS, HEAD = 30, (49152, 576)
Product = Callable[[torch.Tensor, torch.Tensor, None], torch.Tensor]


def quickest(
    product: Product, weights: list[torch.Tensor], inputs: list[torch.Tensor]
) -> float:
    """Seconds for all products once, the least of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for x, weight in zip(inputs, weights, strict=True):
            product(x, weight, None)
        times.append(time.perf_counter() - start)
    return min(times)


@torch.inference_mode()
def main() -> None:
    if not can_pack(torch.device("cpu"), torch.float32):
        print("skipped: oneDNN has no packed products on this machine")
        return
    weights = [torch.randn(s) for s in LAYER * LAYERS + [HEAD]]
    packed = [pack_weight(weight) for weight in weights]
    print("rows  plain weights  packed weights")
    for rows in (1, 4, 16, 64, 256):
        inputs = [torch.randn(rows, weight.shape[1]) for weight in weights]
        plain = quickest(F.linear, weights, inputs)
        quick = quickest(packed_linear, packed, inputs)
        shown = measured(plain * 1e3, "ms"), measured(quick * 1e3, "ms")
        print(f"{rows:4}  {shown[0]:>13}  {shown[1]:>14}")


if __name__ == "__main__":
    run(main)
