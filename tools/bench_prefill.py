"""How long a short prompt takes with its launches recorded, and without.

python tools/bench_prefill.py --shape qwen3-0.6b

Prompts that nobody has seen, one after another, each for a single token: what a request
waits that comes to an idle engine, and what the others wait while it comes in.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from statistics import median
from typing import Annotated
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer

from minisgl.benchmark.report import machine
from minisgl.benchmark.subject import Subject, TimedLLM, open_subject
from minisgl.benchmark.workload import Request
from minisgl.engine import prefill_graph

LENGTHS = (60, 120, 250, 500, 1000, 1500)
TIMES = 9


def milliseconds(llm: TimedLLM, length: int, count: int, seed: int) -> float:
    """The median of several times `count` prompts of `length` tokens together."""
    rng, last = Random(seed), llm.engine.sampler.vocab_size - 1
    took = []
    for _ in range(TIMES):
        requests = [
            Request([rng.randint(0, last) for _ in range(length)], 1)
            for _ in range(count)
        ]
        took.append(1e3 * llm.run(requests, 0.0).seconds)
    return median(took)


def measure(subject: Subject, recorded: bool) -> dict[tuple[int, int], float]:
    """By length and number of prompts."""
    sizes = prefill_graph.SIZES if recorded else ()
    with (
        patch.object(prefill_graph, "SIZES", sizes),
        subject.engine() as llm,
    ):
        for length in LENGTHS:
            milliseconds(llm, length, 1, 0)
        shapes = [(length, 1) for length in LENGTHS] + [(250, 4)]
        return {
            (length, count): milliseconds(llm, length, count, length + count)
            for length, count in shapes
        }


def main(
    shape: Annotated[
        str, typer.Option(help="of random weights")
    ] = "qwen3-0.6b",
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
    dtype: Annotated[str, typer.Option(help="of the weights")] = "bfloat16",
) -> None:
    """Print a line for each length."""
    settings = {"page_size": 16, "max_seq_len_override": 4096}
    with open_subject(None, shape, dtype, device, settings) as subject:
        facts = machine(subject.torch_device)
        print(f"{shape}, {dtype}, {facts['device']}, torch {facts['torch']}")
        without = measure(subject, recorded=False)
        recorded = measure(subject, recorded=True)
    print("prompts  tokens each  launched ms  recorded ms  ratio")
    for (length, count), took in recorded.items():
        before = without[length, count]
        print(
            f"{count:7}{length:13}{before:13.1f}{took:13.1f}{before / took:7.2f}"
        )


if __name__ == "__main__":
    typer.run(main)
