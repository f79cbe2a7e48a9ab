"""What choosing tokens costs: this sampler beside the one of chapter 6.

Random logits stand for a model's. Times are medians, each of one batch: `prepare` is
what the host does before a launch, `sample` what the device does after the model.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minisgl.core import Batch, Req, SamplingParams
from minisgl.engine import sample as new
from minisgl.utils.device import pick_device

ROOT = Path(__file__).resolve().parents[1]
OLD = ROOT / "stages/ch06-engine/files/minisgl/engine/sample.py"
WISHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "temperature, top_p": {"temperature": 0.8, "top_p": 0.95},
}


def load_old() -> Any:
    """The sampler's module as chapter 6 left it."""
    spec = importlib.util.spec_from_file_location("old_sample", OLD)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def make_batch(size: int, wishes: dict[str, Any]) -> Batch:
    """Requests of two tokens that all want the same."""
    reqs = []
    for row in range(size):
        ids, params = torch.tensor([1, 2]), SamplingParams(**wishes)
        handle: Any = None
        reqs.append(Req(ids, row, 1, 64, row, params, handle))
    return Batch(reqs, "decode")


def timed(run: Callable[[], object], device: torch.device, times: int) -> float:
    """Median milliseconds of `run`, until the device is done."""
    spent = []
    for _ in range(times + 3):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent.append(1e3 * (time.perf_counter() - begin))
    return median(spent[3:])


def measure(
    sampler: Any, batch: Batch, logits: torch.Tensor, times: int
) -> tuple[float, float]:
    """Milliseconds of `prepare` and of `sample`."""
    args = sampler.prepare(batch)
    make = timed(lambda: sampler.prepare(batch), logits.device, times)
    draw = timed(lambda: sampler.sample(logits, args), logits.device, times)
    return make, draw


@torch.inference_mode()
def main(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    vocab: Annotated[int, typer.Option(help="tokens to choose from")] = 151936,
    rows: Annotated[str, typer.Option(help="batch sizes")] = "1,16,64",
    times: Annotated[int, typer.Option(help="runs of each")] = 30,
    threads: Annotated[int, typer.Option(help="of the CPU")] = 1,
) -> None:
    """Print milliseconds before and after, by wish and batch size."""
    torch.set_num_threads(threads)
    place = pick_device(device)
    old = load_old()
    print(f"{'':20} rows        prepare              sample")
    for name, wishes in WISHES.items():
        for size in map(int, rows.split(",")):
            batch = make_batch(size, wishes)
            logits = 3 * torch.randn(size, vocab, device=place)
            cells = [
                measure(module.Sampler(place, vocab, 0), batch, logits, times)
                for module in (old, new)
            ]
            (make0, draw0), (make1, draw1) = cells
            print(
                f"{name:20}{size:5}{make0:9.3f} ->{make1:6.3f} ms"
                f"{draw0:9.3f} ->{draw1:8.3f} ms"
            )


if __name__ == "__main__":
    typer.run(main)
