"""Our engine against transformers on a CPU, side by side in one run.

The workload: requests with random prompts and answers of 16 to 256 tokens.
Ours runs at most 16 at once; transformers answers them one by one (a sample) and
in left-padded batches of 16 in order of arrival. Same dtype, same threads. Only
tokens somebody asked for count: a padded batch runs until its longest is done.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, GenerationConfig

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from tools.models import model_path

BATCH = 16
SAMPLE = 8


@dataclass(frozen=True)
class Request:
    """Prompt ids and how many tokens to generate."""

    prompt: list[int]
    output: int


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

    llm: LLM
    hf: Any
    outside: list[tuple[float, float]] = field(default_factory=list)

    def ours(self, requests: list[Request]) -> float:
        """All at once; notes (ms outside forward a step, share of the step)."""
        clock = Clock()
        forward = self.llm.engine.forward_batch
        self.llm.engine.forward_batch = clock.wrap(forward)  # type: ignore[method-assign]
        params = [
            SamplingParams(max_tokens=r.output, ignore_eos=True)
            for r in requests
        ]
        start = time.perf_counter()
        self.llm.generate([r.prompt for r in requests], params, progress=False)
        seconds = time.perf_counter() - start
        del self.llm.engine.forward_batch
        outside = seconds - clock.seconds
        self.outside.append((outside / clock.calls * 1e3, outside / seconds))
        return sum(r.output for r in requests) / seconds

    def one_by_one(self, requests: list[Request]) -> float:
        sample = requests[:SAMPLE]
        start = time.perf_counter()
        for request in sample:
            self._generate([request])
        return sum(r.output for r in sample) / (time.perf_counter() - start)

    def static(self, requests: list[Request]) -> float:
        start = time.perf_counter()
        for first in range(0, len(requests), BATCH):
            self._generate(requests[first : first + BATCH])
        return sum(r.output for r in requests) / (time.perf_counter() - start)

    def _generate(self, requests: list[Request]) -> None:
        longest = max(len(r.prompt) for r in requests)
        pads = [longest - len(r.prompt) for r in requests]
        rows = zip(pads, requests, strict=True)
        ids = torch.tensor([[0] * pad + r.prompt for pad, r in rows])
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
        wanted = max(r.output for r in requests)
        settings = GenerationConfig(
            max_new_tokens=wanted, min_new_tokens=wanted, pad_token_id=0
        )
        with torch.inference_mode():
            self.hf.generate(
                ids, attention_mask=mask, generation_config=settings
            )


def make_requests(count: int, vocab: int, seed: int) -> list[Request]:
    """Seeded ids; the same lengths, uniform in 16 to 256, for every seed."""
    random.seed(0)
    sizes = [
        (random.randint(16, 256), random.randint(16, 256)) for _ in range(count)
    ]
    random.seed(seed)
    return [
        Request([random.randrange(vocab) for _ in range(length)], output)
        for length, output in sizes
    ]


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
    path = str(model_path(model))
    llm = LLM(
        path,
        dtype,
        device="cpu",
        max_running_req=BATCH,
        page_size=page_size,
        num_page_override=16384 // page_size,
    )
    hf = AutoModelForCausalLM.from_pretrained(
        path, dtype=llm.engine.dtype
    ).eval()
    peers = Peers(llm, hf)
    vocab = llm.engine.sampler.vocab_size
    ways = {
        "ours": peers.ours,
        "static": peers.static,
        "one by one": peers.one_by_one,
    }
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        # New prompts: no round may find the one before it in the prefix cache.
        work = make_requests(requests, vocab, seed=number)
        for name, way in ways.items():
            speeds[name].append(way(work))
            speed = speeds[name][-1]
            print(
                f"round {number + 1}: {name:10} {speed:7.1f} tok/s", flush=True
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
