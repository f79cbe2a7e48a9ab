"""Decode steps with recordings and without: time a step, and what capturing costs.

Random weights of a real model's shape are made on the device. A step's time is that of
64 more tokens, divided by 64: prompts cancel out, scheduling and sampling stay in.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minisgl.core import SamplingParams
from minisgl.engine.graph import get_free_memory, mem_GB
from minisgl.llm import LLM
from tools.bench_overlap import SHAPES, make_folder

PROMPT, MORE = 128, 64


def seconds(llm: LLM, requests: int, tokens: int) -> float:
    """To answer so many prompts, each of its own, with `tokens` tokens."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    prompts = [
        [(7 * row + i) % 500 for i in range(PROMPT)] for row in range(requests)
    ]
    begin = time.perf_counter()
    llm.generate(prompts, params, progress=False)
    return time.perf_counter() - begin


def step_ms(llm: LLM, requests: int) -> float:
    """Milliseconds of a decode step of that many requests."""
    seconds(llm, requests, 4)
    short = min(seconds(llm, requests, 2) for _ in range(2))
    long = min(seconds(llm, requests, 2 + MORE) for _ in range(2))
    return 1e3 * (long - short) / MORE


def start(folder: Path, **settings: Any) -> tuple[LLM, float]:
    """An engine, and the seconds that it took to make."""
    begin = time.perf_counter()
    llm = LLM(
        str(folder), use_dummy_weight=True, cache_type="naive", **settings
    )
    return llm, time.perf_counter() - begin


def main(
    shape: Annotated[
        str, typer.Option(help=f"one of {[*SHAPES]}")
    ] = "qwen3-0.6b",
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda",
    dtype: Annotated[str, typer.Option(help="of the weights")] = "bfloat16",
    backend: Annotated[str, typer.Option(help="attention backend")] = "auto",
    sizes: Annotated[str, typer.Option(help="requests")] = "1,8,32,64,128,256",
    page_size: Annotated[int, typer.Option(help="tokens a page")] = 16,
) -> None:
    """Print a table, and what recording took at the start."""
    wanted = [int(size) for size in sizes.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = make_folder(shape, Path(name))
        settings: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "attention_backend": backend,
            "page_size": page_size,
            "max_running_req": max(wanted),
            "max_seq_len_override": 256,
            "num_page_override": max(wanted) * (PROMPT + MORE + 16) // page_size
            + max(wanted),
        }
        place = torch.device(device)
        eager, took = start(folder, **settings, cuda_graph_max_bs=0)
        before = [step_ms(eager, size) for size in wanted]
        del eager
        free = get_free_memory(place)
        recorded, took_recorded = start(
            folder, **settings, cuda_graph_max_bs=max(wanted)
        )
        used = free - get_free_memory(place)
        runner = recorded.engine.graph_runner
        name_of = type(recorded.engine.attn_backend).__name__
        print(f"{shape}, {dtype}, {name_of}, pages of {page_size}")
        print(
            f"{'requests':>8}{'launched':>12}{'replayed':>12}{'tokens/s':>10}"
        )
        for size, old in zip(wanted, before, strict=True):
            new = step_ms(recorded, size)
            rate = 1e3 * size / new
            print(f"{size:8}{old:9.2f} ms{new:9.2f} ms{rate:10,.0f}")
        print(
            f"{len(runner.graph_map)} recordings: {took_recorded - took:.1f} s more "
            f"at the start; the whole engine takes {mem_GB(used)}"
            if device == "cuda"
            else f"{len(runner.graph_map)} recordings"
        )


if __name__ == "__main__":
    typer.run(main)
