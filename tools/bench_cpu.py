"""Our engine against transformers on a CPU, side by side in one run.

The workload `cpu` of `minisgl.benchmark` (chapter 21): requests with random prompts
and answers of 16 to 256 tokens. Ours runs at most 16 at once; transformers answers
them one by one (a sample) and in left-padded batches of 16 in order of arrival. Same
dtype, same threads. Only tokens somebody asked for count: a padded batch runs until its
longest is done.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table

from minisgl.benchmark.peers import one_by_one, static_batches
from minisgl.benchmark.subject import Run, Subject, TimedLLM
from minisgl.benchmark.workload import WORKLOADS, Request
from minisgl.core import SamplingParams
from minisgl.llm import LLM
from tools.models import model_path

BATCH = 16
SAMPLE = 8


@dataclass
class Clock:
    """Seconds and calls of a function it is wrapped around."""

    seconds: float = 0.0
    calls: int = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            self.seconds += time.perf_counter() - start
            self.calls += 1
            return result

        return timed


@dataclass
class Peers:
    """The three ways to answer; each returns tokens a second."""

    llm: TimedLLM
    hf: Any
    outside: list[tuple[float, float]] = field(default_factory=list)

    def ours(self, requests: list[Request]) -> float:
        """All at once; notes (ms outside forward a step, share of the step)."""
        clock = Clock()
        forward = self.llm.engine.forward_batch
        self.llm.engine.forward_batch = clock.wrap(forward)  # type: ignore[method-assign]
        run = self.llm.run(requests, 0.0)
        del self.llm.engine.forward_batch
        outside = run.seconds - clock.seconds
        self.outside.append(
            (outside / clock.calls * 1e3, outside / run.seconds)
        )
        return _speed(run)

    def one_by_one(self, requests: list[Request]) -> float:
        return _speed(one_by_one(self.hf, requests[:SAMPLE], 0.0, BATCH))

    def static(self, requests: list[Request]) -> float:
        return _speed(static_batches(self.hf, requests, 0.0, BATCH))


def _speed(run: Run) -> float:
    return sum(map(len, run.answers)) / run.seconds


def first_token_ms(llm: LLM, prompt: list[int]) -> float:
    """Time to the first token of one prompt, in ms."""
    start = time.perf_counter()
    llm.generate([prompt], SamplingParams(max_tokens=1), progress=False)
    return (time.perf_counter() - start) * 1e3


def prefix_times(llm: LLM, vocab: int, rounds: int) -> tuple[float, float]:
    """Median ms to the first token: 512 shared tokens and 16 new, miss and hit."""
    miss, hit = [], []
    for _ in range(rounds):
        shared = [random.randrange(vocab) for _ in range(512)]
        tails = [[random.randrange(vocab) for _ in range(16)] for _ in range(2)]
        miss.append(first_token_ms(llm, shared + tails[0]))
        hit.append(first_token_ms(llm, shared + tails[1]))
    return statistics.median(miss), statistics.median(hit)


def main(
    model: Annotated[
        str, typer.Option(help="Known name, folder or hub id.")
    ] = ("smollm2-135m"),
    dtype: Annotated[
        str, typer.Option(help="float32 or bfloat16.")
    ] = "float32",
    requests: Annotated[int, typer.Option(help="How many requests.")] = 64,
    rounds: Annotated[int, typer.Option(help="Interleaved rounds.")] = 3,
    page_size: Annotated[int, typer.Option(help="Tokens a page.")] = 16,
    threads: Annotated[
        int, typer.Option(help="0 leaves torch its default.")
    ] = 0,
) -> None:
    """Print tokens a second of each way, medians and ratios of one run."""
    if threads:
        torch.set_num_threads(threads)
    settings = {
        "max_running_req": BATCH,
        "page_size": page_size,
        "num_page_override": 16384 // page_size,
    }
    path = str(model_path(model))
    subject = Subject(path, False, dtype, "cpu", settings)
    work = replace(WORKLOADS["cpu"], requests=requests)
    with subject.engine() as llm, subject.transformers() as hf:
        peers = Peers(llm, hf)
        vocab = llm.engine.sampler.vocab_size
        ways = {
            "ours": peers.ours,
            "static": peers.static,
            "one by one": peers.one_by_one,
        }
        speeds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds):
            drawn = work.draw(vocab, number)
            for name, way in ways.items():
                speeds[name].append(way(drawn))
                speed = speeds[name][-1]
                print(
                    f"round {number + 1}: {name:10} {speed:7.1f} tok/s",
                    flush=True,
                )
        _report(speeds, peers, dtype, requests)
        miss, hit = prefix_times(llm, vocab, rounds)
    Console().print(
        f"first token after a 512-token prefix: {miss:.1f} ms without a hit, "
        f"{hit:.1f} ms with one: {hit / miss:.3f} of it"
    )


def _report(
    speeds: dict[str, list[float]], peers: Peers, dtype: str, requests: int
) -> None:
    medians = {
        name: statistics.median(values) for name, values in speeds.items()
    }
    threads = torch.get_num_threads()
    table = Table(title=f"{requests} requests, {dtype}, {threads} threads")
    for column in ("", "tok/s", "rounds", "ours is"):
        table.add_column(column, justify="right")
    for name, median in medians.items():
        shown = " ".join(f"{value:.1f}" for value in speeds[name])
        ratio = f"{medians['ours'] / median:.2f} x"
        table.add_row(name, f"{median:.1f}", shown, ratio)
    Console().print(table)
    step_ms = statistics.median(ms for ms, _ in peers.outside)
    share = statistics.median(share for _, share in peers.outside)
    Console().print(
        f"outside the forward pass: {step_ms:.2f} ms a step, {share:.1%} of it"
    )


if __name__ == "__main__":
    typer.run(main)
