"""float8 on a Hopper: single products, then decode steps of whole models.

Weights are random, made on the device with the shapes of real models. A step's time is
that of 64 more tokens, divided by 64, as in tools/bench_graph.py.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minisgl.benchmark.shapes import SHAPES, shape_folder
from minisgl.quant import QuantConfig, create_quant_method
from minisgl.quant.fp8 import quantize_rows, scaled_product
from tools.bench_graph import MORE, PROMPT, start, step_ms

ROWS = (1, 32, 64, 256)


def products(shape: str) -> dict[str, tuple[int, int]]:
    """[out, in] of the four linears of a layer."""
    found = SHAPES[shape]
    hidden, middle = found["hidden_size"], found["intermediate_size"]
    dim = found["head_dim"]
    heads = found["num_attention_heads"] * dim
    pairs = found["num_key_value_heads"] * dim
    return {
        "qkv": (heads + 2 * pairs, hidden),
        "o": (hidden, heads),
        "gate_up": (2 * middle, hidden),
        "down": (hidden, middle),
    }


def micros(run: Callable[[int], Any], copies: int) -> float:
    """Microseconds of a call in a CUDA graph of as many, each on its own data.

    The weights of all calls together do not fit into the cache.
    """
    for index in range(copies):
        run(index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(copies):
            run(index)
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * float(begin.elapsed_time(end)) / copies)
    return min(times)


def compare(shape: str, rows: int, name: str, size: tuple[int, int]) -> str:
    """A line of the first table; checks the product before it is timed."""
    copies = max(4, (400 << 20) // (size[0] * size[1]))
    method = create_quant_method(QuantConfig("fp8"))
    device = torch.device("cuda")
    x = torch.randn(rows, size[1], dtype=torch.bfloat16, device=device)
    whole = [
        torch.randn(size, dtype=torch.bfloat16, device=device)
        for _ in range(copies)
    ]
    small = [method.quantize(weight) for weight in whole]
    exact = x.float() @ whole[0].float().T
    found = scaled_product(x, *small[0]).float()
    error = float((found - exact).norm() / exact.norm())
    assert error < 0.06, f"{name}: off by {error}"
    plain = micros(lambda i: F.linear(x, whole[i]), copies)
    both = micros(lambda i: scaled_product(x, *small[i]), copies)
    alone = micros(lambda i: quantize_rows(x), copies)
    return (
        f"{name:8}{rows:5}{plain:10.1f}{both:10.1f}{alone:10.1f}"
        f"{plain / both:8.2f}{100 * error:8.1f}%"
    )


def decode(shape: str, requests: int, **settings: Any) -> tuple[float, float]:
    """(ms a step, GiB of weights) of a model."""
    with shape_folder(shape) as folder:
        llm, _ = start(
            folder,
            **{
                "device": "cuda",
                "dtype": "bfloat16",
                "page_size": 16,
                "max_running_req": requests,
                "max_seq_len_override": 256,
                "num_page_override": requests * (PROMPT + MORE + 32) // 16,
                "cuda_graph_bs": [requests],
                **settings,
            },
        )
        weights = llm.engine.model.state_dict().values()
        size = sum(w.nbytes for w in weights) / 2**30
        took = step_ms(llm, requests)
    llm.shutdown()
    del llm
    gc.collect()
    torch.cuda.empty_cache()
    return took, size


def main(
    shapes: Annotated[str, typer.Option(help="models")] = "qwen3-8b,qwen3-0.6b",
    requests: Annotated[int, typer.Option(help="of a decode step")] = 32,
    least: Annotated[
        float, typer.Option(help="fail if the first model gains less")
    ] = 0.0,
) -> None:
    """Print two tables."""
    names = shapes.split(",")
    print(f"{names[0]}, microseconds a product; quantising x is part of float8")
    print("product  rows      bf16    float8  (rows x)   ratio   error")
    for rows in ROWS:
        for name, size in products(names[0]).items():
            print(compare(names[0], rows, name, size), flush=True)
    print(f"\na decode step of {requests} requests")
    print(
        f"{'model':12}{'form':6}{'GiB':>7}{'ms':>9}{'tokens/s':>10}{'ratio':>7}"
    )
    gains = []
    for shape in names:
        plain = 0.0
        for form in (None, "fp8"):
            took, gib = decode(shape, requests, quantization=form)
            plain = plain or took
            print(
                f"{shape:12}{form or 'bf16':6}{gib:7.2f}{took:9.2f}"
                f"{1e3 * requests / took:10,.0f}{plain / took:7.2f}",
                flush=True,
            )
            gains.append(plain / took)
    verdict = "ok" if gains[1] >= least else "FAIL"
    print(
        f"{verdict}: {names[0]} in fp8 is {gains[1]:.2f} times as fast as in bf16"
    )
    raise typer.Exit(gains[1] < least)


if __name__ == "__main__":
    typer.run(main)
