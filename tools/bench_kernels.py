"""The kernels against their torch references and against the memory's own speed.

python tools/bench_kernels.py
python tools/bench_kernels.py --least 0.7

On a CUDA device a kernel is compiled and loaded again, which is timed. Then the copy
bandwidth is measured, in the same run; bytes moved a second are shown as a share of it.
Sizes are past any L2 cache; two more rows have the size of a decode step, many launches
in one CUDA graph. The comparison of radix keys runs on the CPU, everywhere.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import typer  # noqa: E402

from tools.stagekit import measured  # noqa: E402

Work = Callable[[], object]
TOKENS, DECODE = 131_072, 256
HEADS, DIM = 8, 128  # of keys and values: those of Qwen3-0.6B
VOCAB, HIDDEN = 151_936, 1024


@dataclass
class Case:
    """A kernel and its reference on the same tensors; bytes read and written."""

    name: str
    moved: int
    kernel: Work
    torch: Work


def seconds(work: Work, repeats: int = 20) -> float:
    """Median time of one call on the GPU."""
    for _ in range(3):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    spans = [a.elapsed_time(b) for a, b in pairwise(marks)]
    return float(median(spans)) / 1000


def graph_seconds(work: Work, launches: int = 50) -> float:
    """Mean time of a call among many in one CUDA graph: no host in between."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            work()
    return seconds(graph.replay) / launches


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy of 1 GiB on the device."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source))


def store_case(tokens: int) -> Case:
    from minisgl.kernel.store import store_cache, store_cache_torch

    pool = torch.zeros(
        *(2, TOKENS, HEADS, DIM), dtype=torch.bfloat16, device="cuda"
    )
    row = HEADS * DIM
    qkv = torch.randn(tokens, 4 * row, device="cuda").bfloat16()
    k, v = qkv[:, 2 * row : 3 * row], qkv[:, 3 * row :]
    slots = torch.randperm(TOKENS, device="cuda")[:tokens].int()
    given = (pool[0], pool[1], slots, k, v)
    return Case(
        f"store {tokens:,} tokens",
        4 * tokens * row * pool.element_size(),
        lambda: store_cache(*given),
        lambda: store_cache_torch(*given),
    )


def index_case(tokens: int) -> Case:
    from minisgl.kernel.index import indexing, indexing_torch

    table = torch.randn(VOCAB, HIDDEN, device="cuda").bfloat16()
    ids = torch.randperm(VOCAB, device="cuda")[:tokens].int()
    return Case(
        f"index {tokens:,} tokens",
        2 * tokens * HIDDEN * table.element_size(),
        lambda: indexing(table, ids),
        lambda: indexing_torch(table, ids),
    )


def show_compile() -> None:
    """Print how long the first use of a kernel takes, and the first of a process."""
    from minisgl.kernel.utils import load_jit

    spent = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            start = time.perf_counter()
            load_jit(
                "store",
                files=["store.cu"],
                wrappers=[("store", "store<int32_t, 2048, 16, 128, 1>")],
                target="cuda",
                build_directory=folder,
            )
            spent.append(time.perf_counter() - start)
    print(f"a kernel is compiled in {measured(spent[0], 's')}, ", end="")
    print(f"and loaded again in {measured(spent[1] * 1000, 'ms')}")


def show_cuda() -> float:
    """Print the table of a CUDA device; the least share of the copy bandwidth."""
    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}")
    show_compile()
    best = copy_bandwidth()
    print(f"copy bandwidth {measured(best / 1e12, 'TB/s', 2)}\n")
    print(f"{'':24}  kernel                 torch")
    shares = []
    for case in (store_case(TOKENS), index_case(TOKENS)):
        rates = [case.moved / seconds(w) for w in (case.kernel, case.torch)]
        shares.append(rates[0] / best)
        print(f"{case.name:24}", *(_rate(r, best) for r in rates))
    for case in (store_case(DECODE), index_case(DECODE)):
        times = [graph_seconds(w) for w in (case.kernel, case.torch)]
        texts = [measured(t * 1e6, "us", 2) for t in times]
        print(f"{case.name:24}", *(f"{text:21}" for text in texts))
    print()
    return min(shares)


def _rate(rate: float, best: float) -> str:
    share = measured(100 * rate / best, "%", 0)
    return f"{measured(rate / 1e12, 'TB/s', 2)}, {share:9}"


def show_radix() -> None:
    """Print how long a comparison of two equal keys takes, by their length."""
    from minisgl.kernel.radix import fast_compare_key, fast_compare_key_torch

    print(f"{'radix keys, on the CPU':24} C++        torch")
    for length in (16, 256, 4096):
        x = torch.arange(length, dtype=torch.int32)
        pair = x, x.clone()
        times = [
            _cpu_seconds(compare, pair)
            for compare in (fast_compare_key, fast_compare_key_torch)
        ]
        texts = [measured(t * 1e6, "us") for t in times]
        print(
            f"{length:6,} tokens equal".ljust(24), f"{texts[0]:10} {texts[1]}"
        )


def _cpu_seconds(
    compare: Callable[[torch.Tensor, torch.Tensor], int],
    pair: tuple[torch.Tensor, torch.Tensor],
) -> float:
    """Least mean of ten rounds: what else the machine does is not counted."""
    calls, rounds = 500, []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(calls):
            compare(*pair)
        rounds.append((time.perf_counter() - start) / calls)
    return min(rounds)


def main(
    least: Annotated[
        float,
        typer.Option(help="Share of the copy bandwidth to reach, else exit 1."),
    ] = 0.0,
) -> None:
    """Measure what is here: the GPU's kernels if there is a GPU, then the CPU's."""
    if torch.cuda.is_available():
        reached = show_cuda()
    else:
        print("no CUDA device: store and index are not measured\n")
        reached = 1.0
    show_radix()
    if reached < least:
        raise SystemExit(f"error: {reached:.0%} of the copy bandwidth")


if __name__ == "__main__":
    typer.run(main)
