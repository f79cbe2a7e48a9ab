"""What the gated delta rule of one layer takes: in torch, and in its kernels.

python tools/bench_delta.py --device cpu --prompts 1,4 --length 256 --rows 1,8

A layer of the shape that Qwen3.5-0.8B has. Without a GPU there are no kernels, and the
column shows the same lines of torch.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import typer

from minisgl.attention.segments import NOWHERE, Segment, Wave
from minisgl.kernel import delta
from minisgl.utils import pick_device

HEADS, DIM, WIDTH = 16, 128, 4
CHANNELS = 3 * HEADS * DIM


class Layer:
    """Weights, and states in as many slots as are asked for."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.device = device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.weights = delta.DeltaWeights(
            self.draw(CHANNELS, WIDTH),
            self.draw(HEADS),
            self.draw(HEADS),
            HEADS,
            DIM,
        )
        self.conv = self.draw(slots, CHANNELS, WIDTH - 1)
        self.recurrent = self.draw(slots, HEADS, DIM, DIM).float()

    def draw(self, *sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device=self.device).to(self.dtype)

    def call(
        self, function: Callable[..., object], tokens: int, where: object
    ) -> float:
        """Milliseconds of a call on so many tokens."""
        inputs = self.draw(tokens, CHANNELS), self.draw(tokens, 2 * HEADS)
        found = []
        for _ in range(12):
            self._wait()
            begin = time.perf_counter()
            function(*inputs, self.weights, self.conv, self.recurrent, where)
            self._wait()
            found.append(1000 * (time.perf_counter() - begin))
        return median(found[2:])

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def prefill_wave(prompts: int, length: int, device: torch.device) -> list[Wave]:
    starts = range(0, prompts * length, length)
    segments = [
        Segment(start, start + length, row, row, NOWHERE)
        for row, start in enumerate(starts)
    ]
    table = torch.tensor(segments, dtype=torch.int32, device=device)
    return [Wave(segments, table)]


@torch.inference_mode()
def main(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    prompts: Annotated[
        str, typer.Option(help="In a prefill batch.")
    ] = "1,8,32",
    length: Annotated[int, typer.Option(help="Tokens of each.")] = 1024,
    rows: Annotated[
        str, typer.Option(help="Of a decode batch.")
    ] = "1,16,64,256",
) -> None:
    """Print a line for every size."""
    where = pick_device(device)
    counts = [int(n) for n in prompts.split(",")]
    batches = [int(n) for n in rows.split(",")]
    layer = Layer(max(counts + batches), where)
    print(
        f"{HEADS} heads of {DIM} x {DIM}, {str(layer.dtype).removeprefix('torch.')}"
    )
    print("what                    torch      kernels")
    for count in counts:
        wave = prefill_wave(count, length, where)
        times = [
            layer.call(function, count * length, wave)
            for function in (delta.delta_prefill_torch, delta.delta_prefill)
        ]
        show(f"{count} x {length} tokens", times)
    for count in batches:
        ids = torch.arange(count, device=where)
        times = [
            layer.call(function, count, ids)
            for function in (delta.delta_decode_torch, delta.delta_decode)
        ]
        moved = 2 * count * layer.recurrent[0].nbytes
        show(f"a step of {count}", times, f"{moved / times[1] / 1e9:8.3f} TB/s")


def show(what: str, times: list[float], more: str = "") -> None:
    print(f"{what:18}{times[0]:8.2f} ms  {times[1]:8.2f} ms{more}")


if __name__ == "__main__":
    typer.run(main)
