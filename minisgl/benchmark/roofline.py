"""How far from the hardware: the least a workload needs, and where the rest goes.

The roof is that of Williams et al., "Roofline" (2009), with what a serving engine
moves: keys, values and weights by the memory, prompts by the multipliers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from torch.profiler import ProfilerActivity, profile

from minisgl.benchmark.report import Report, Value, machine
from minisgl.benchmark.subject import Subject, TimedLLM
from minisgl.benchmark.traffic import (
    Rates,
    Traffic,
    measure_rates,
    traffic_of,
)
from minisgl.benchmark.workload import UNTIMED, Request, Workload

PROFILED = 48
"""Tokens of an answer while operators of a CPU are watched: they are many."""

KINDS = {
    "attention": (
        *("attention", "paged", "mergestates"),
        *("flash_fwd", "flashattn", "fmha"),
    ),
    "products": (
        *("gemm", "nvjet", "cublas", "cutlass", "mm", "linear"),
        "fused_moe",
    ),
    "store of keys and values": ("store_rows", "index_put"),
    "norms and rotation": ("norm", "rope", "rotary"),
    "activation": ("act_and_mul", "silu"),
    "drawing tokens": (
        *("sampling", "softmax", "sum_blocks", "pick_kernel", "argmax"),
        *("cumsum", "scan", "sort", "topk", "searchsorted"),
    ),
}
"""Parts of kernels' names; the first kind with a part that occurs has it."""


def kind_of(name: str) -> str:
    """What a kernel is for, by its name."""
    small = name.lower()
    for kind, parts in KINDS.items():
        if any(part in small for part in parts):
            return kind
    return "the rest"


def measure_roofline(
    subject: Subject, work: Workload, rounds: int, say: Callable[[str], None]
) -> Report:
    """One engine, the workload timed, and then watched by the profiler."""
    with subject.engine() as llm:
        rates = measure_rates(llm.engine.device, llm.engine.dtype)
        llm.warm_up(work)
        vocab = llm.engine.sampler.vocab_size
        requests = work.draw(vocab, 0)
        least = traffic_of(llm.engine, llm.config.model_config, requests)
        seconds = []
        for number in range(rounds):
            run = llm.run(work.draw(vocab, number), work.temperature)
            seconds.append(run.seconds)
            say(f"round {number + 1}: {run.seconds:.2f} s")
        tokens = sum(r.output for r in requests)
        rows = _roof_rows(least, rates, tokens, min(seconds))
        rows += _time_rows(llm, work, min(seconds))
        setup = machine(llm.engine.device) | {
            "dtype": str(llm.engine.dtype).removeprefix("torch."),
            "copy GB/s": round(rates.copy / 1e9),
            "product TFLOP/s": round(rates.matrix / 1e12, 2),
        }
    title = f"{work.requests} requests, {tokens:,} tokens"
    columns = ["", "seconds", "share", "tokens/s"]
    return Report(title, columns, rows, setup | subject.settings)


def _roof_rows(
    least: Traffic, rates: Rates, tokens: int, seconds: float
) -> list[dict[str, Value]]:
    """What the hardware needs for each part, and the engine for all."""
    bound = least.seconds(rates)
    parts = {
        "to read keys and values": least.cache / rates.copy,
        "to read weights": least.weights / rates.copy,
        "to compute prompts": least.prompts / rates.matrix,
    }
    rows: list[dict[str, Value]] = [
        {"": name, "seconds": part, "share": _percent(part / bound)}
        for name, part in parts.items()
    ]
    rows.append({"": "the bound", "seconds": bound, "tokens/s": tokens / bound})
    rows.append(
        {
            "": "the engine, quickest round",
            "seconds": seconds,
            "share": _percent(bound / seconds),
            "tokens/s": tokens / seconds,
        }
    )
    return rows


def _time_rows(
    llm: TimedLLM, work: Workload, quickest: float
) -> list[dict[str, Value]]:
    """Where the device's time goes, with prompts that nobody has seen.

    Being watched slows the host down, and not the device. So it is idle for as
    long as the same takes unwatched, less what kernels need.

    quickest: seconds of the workload. A CPU gets shorter answers, timed here.
    """
    on_gpu = llm.engine.device.type == "cuda"
    kind = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    longest, seconds = (work.longest if on_gpu else PROFILED), quickest

    def draw(more: int) -> list[Request]:
        return [
            replace(r, output=min(r.output, longest))
            for r in work.draw(llm.engine.sampler.vocab_size, UNTIMED + more)
        ]

    if not on_gpu:
        seconds = llm.run(draw(1), work.temperature).seconds
    watched = draw(2)
    with profile(activities=[kind]) as seen:
        llm.run(watched, work.temperature)
    spans = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in seen.events()
        if on_gpu == (event.device_type.name == "CUDA")
        and (on_gpu or event.cpu_parent is None)
    ]
    sums = dict.fromkeys([*KINDS, "the rest"], 0.0)
    for name, start, end in spans:
        sums[kind_of(name)] += (end - start) / 1e6
    busy = _busy(spans)
    sums["idle" if on_gpu else "Python"] = max(0.0, seconds - busy)
    return [
        {
            "": f"profile: {name}",
            "seconds": spent,
            "share": _percent(spent / seconds),
        }
        for name, spent in sums.items()
    ]


def _busy(spans: Iterable[tuple[str, float, float]]) -> float:
    """Seconds in which at least one of the spans, in us, was going on."""
    total = last = 0.0
    for _, start, end in sorted(spans, key=lambda span: span[1]):
        total += max(0.0, end - max(start, last))
        last = max(last, end)
    return total / 1e6


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
