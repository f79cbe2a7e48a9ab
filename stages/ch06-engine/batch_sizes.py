"""What a decode step costs when more requests are in it."""

import sys
from itertools import pairwise
from pathlib import Path
from time import perf_counter

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
import typer
from by_hand import make_engine, make_reqs, run

from tools.stagekit import measured, model_path

STEPS = 9


def best_step(times: list[float]) -> float:
    """Seconds of the quickest decode step; the first of all is the prefill."""
    return min(b - a for a, b in pairwise(times[1:]))


def main(
    model: str = "qwen3-tiny", device: str = "cpu", threads: int = 1
) -> None:
    """Batches of 1 to 16 requests, each with a prompt of 32 tokens."""
    torch.set_num_threads(threads)
    path = model_path(model)
    engine = make_engine(path, device, "float32")
    print("requests  quickest step  tokens/s of it")
    for size in (1, 2, 4, 8, 16):
        asked = [[100 + row] * 32 for row in range(size)]
        reqs = make_reqs(engine, asked, [(STEPS, 0.0, None)] * size)
        times = [perf_counter()]
        for _ in run(engine, reqs, frozenset()):
            times.append(perf_counter())
        step = best_step(times)
        took = measured(1000 * step, "ms")
        print(f"{size:8}  {took:>13}  {measured(size / step, 'tokens/s'):>15}")


if __name__ == "__main__":
    typer.run(main)
