"""What each lever of chapter 23 is worth: one at a time is taken back.

python tools/bench_levers.py --shape qwen3-0.6b

The engine with all of them is timed before and after the others; a lever's worth is the
time without it to the time with all, in the same run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import typer

from minisgl.attention.fi import FlashInferBackend
from minisgl.benchmark.report import machine
from minisgl.benchmark.subject import Run, Subject, open_subject
from minisgl.benchmark.workload import WORKLOADS, Workload
from minisgl.engine.sample import Sampler

ALL = "all of them"


class Nobody:
    """A class that no backend has."""


def _nowhere(device: torch.device) -> bool:
    return False


@contextmanager
def _settings_read_anew() -> Iterator[None]:
    prepare = Sampler.prepare

    def forgetful(self: Sampler, batch: Any) -> Any:
        self._params = []
        return prepare(self, batch)

    with patch.object(Sampler, "prepare", forgetful):
        yield


def _few_tensor_cores(self: FlashInferBackend, size: int) -> bool:
    return bool(self.use_tensor_cores)


def _always(self: FlashInferBackend, size: int) -> bool:
    return True


WITHOUT: dict[str, Callable[[], Any]] = {
    ALL: nullcontext,
    "tensor cores from 64 requests on": lambda: patch.object(
        FlashInferBackend, "_tensor_cores_for", _few_tensor_cores
    ),
    "sequences kept whole from 64 on": lambda: patch.object(
        FlashInferBackend, "_splits", _always
    ),
    "draws in two kernels": lambda: patch(
        "minisgl.engine.sample.runs_triton", _nowhere
    ),
    "one kernel for norms, rope, store": lambda: patch(
        "minisgl.layers.attention.runs_triton", _nowhere
    ),
    "keys and values stored on the way": lambda: patch(
        "minisgl.layers.attention.AttendsStored", Nobody
    ),
    "sampling settings kept": _settings_read_anew,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "pages of 16 (1 instead)": {"page_size": 1},
    "all prompts first (in turn)": {"prefills_in_a_row": 1},
    "overlap": {"overlap": False},
}


def quickest(
    subject: Subject, work: Workload, rounds: int, **changes: Any
) -> Run:
    """The quickest round of a fresh engine."""
    with subject.engine(**changes) as llm:
        llm.warm_up(work)
        vocab = llm.engine.sampler.vocab_size
        runs = [
            llm.run(work.draw(vocab, number), work.temperature)
            for number in range(rounds)
        ]
    return min(runs, key=lambda run: run.seconds)


def main(
    shape: Annotated[
        str, typer.Option(help="of random weights")
    ] = "qwen3-0.6b",
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
    dtype: Annotated[str, typer.Option(help="of the weights")] = "bfloat16",
    workload: Annotated[str, typer.Option(help="gpu or cpu")] = "gpu",
    rounds: Annotated[int, typer.Option(min=1, help="of each engine")] = 2,
) -> None:
    """Print a line for each lever."""
    work = WORKLOADS[workload]
    settings = {
        "page_size": 16,
        "max_seq_len_override": 4096,
        "prefills_in_a_row": 0,
    }
    with open_subject(None, shape, dtype, device, settings) as subject:
        facts = machine(subject.torch_device)
        print(f"{shape}, {dtype}, {facts['device']}, torch {facts['torch']}")
        found = {}
        for name, taken_back in WITHOUT.items():
            with taken_back():
                found[name] = quickest(subject, work, rounds)
        for name, changes in SETTINGS.items():
            found[name] = quickest(subject, work, rounds, **changes)
        again = quickest(subject, work, rounds)
    best = min(found[ALL].seconds, again.seconds)
    tokens = sum(map(len, again.answers))
    print(
        f"{'all, the better of two engines':42}{tokens / best:8,.0f} tokens/s"
    )
    for name, run in found.items():
        if name != ALL:
            rate, share = tokens / run.seconds, run.seconds / best
            print(
                f"without {name:34}{rate:8,.0f} tokens/s  {share:.2f} x the time"
            )


if __name__ == "__main__":
    typer.run(main)
