"""A server under load: who waits how long, and how much it can take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp  # noqa: F401  what DefaultAioHttpClient needs
import numpy as np
from openai import APIConnectionError, DefaultAioHttpClient, OpenAIError
from openai import AsyncOpenAI as OpenAI

from minisgl.benchmark.client import (
    BenchmarkTrace,
    RawResult,
    benchmark_one,
    benchmark_trace,
    gather,
    get_model_name,
    process_benchmark_results,
)
from minisgl.benchmark.report import Report, Value
from minisgl.benchmark.traces import (
    read_mooncake_trace,
    read_qwen_trace,
    scale_traces,
    text_of,
)
from minisgl.benchmark.workload import UNTIMED, Workload
from minisgl.utils import load_tokenizer

PERCENTILES = (50, 90, 99)
ALL_AT_ONCE = float("inf")

WARM_UP = 4

Say = Callable[[str], None]
_READERS = {"mooncake": read_mooncake_trace, "qwen": read_qwen_trace}


@dataclass(frozen=True)
class Rate:
    """Requests a second; or, `relative`, of those the server can take."""

    number: float
    relative: bool = False

    @staticmethod
    def parse(text: str) -> Rate:
        """``4``, ``inf``, or ``80%`` of what was done a second with ``inf``.

        Raises:
            ValueError: it is none of these.
        """
        relative = text.endswith("%")
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = 0.0
        if not number > 0 or (relative and number == ALL_AT_ONCE):
            raise ValueError(
                f"{text!r} is no rate: write a number, inf, or a share like 80%"
            )
        return Rate(number / 100 if relative else number, relative)


@dataclass
class Target:
    """A server, and what is asked of it.

    tokenizer: makes prompts of exact lengths; without one they are of words.
    """

    client: OpenAI
    model: str
    work: Workload
    tokenizer: Any = None

    def messages(self, number: int) -> list[BenchmarkTrace]:
        """The requests of a run, all at time 0.

        Every run has other prompts, but the same lengths.
        """
        work, lengths, rng = self.work, Random(0), Random(number)
        first = text_of(self.tokenizer, work.shared, rng)
        found = []
        for _ in range(work.requests):
            size, answer = (
                lengths.randint(work.shortest, work.longest) for _ in range(2)
            )
            text = f"{first} {text_of(self.tokenizer, size, rng)}".strip()
            size += work.shared
            found.append(BenchmarkTrace(0.0, text, answer, size))
        return found

    async def replay(self, traces: list[BenchmarkTrace]) -> list[RawResult]:
        """Ask each at its time."""
        return await benchmark_trace(self.client, traces, self.model)

    async def concurrent(
        self, traces: list[BenchmarkTrace], users: int
    ) -> list[RawResult]:
        """So many users; each asks again once it has its answer."""
        left = iter(traces)

        async def user() -> list[RawResult]:
            return [
                await benchmark_one(
                    self.client,
                    *(msg.message, msg.output_length, self.model),
                    input_length=msg.input_length,
                )
                for msg in left
            ]

        answered = await gather([user() for _ in range(users)], True)
        return [result for results in answered for result in results]


def arrivals(
    traces: list[BenchmarkTrace], rate: float, rng: Random
) -> list[BenchmarkTrace]:
    """The same at random times, `rate` a second on average.

    Clients that know nothing of each other make a Poisson process: the waits
    between one and the next are exponential.
    """
    now, found = 0.0, []
    for trace in traces:
        found.append(replace(trace, timestamp=now))
        now += 0.0 if rate == ALL_AT_ONCE else rng.expovariate(rate)
    return found


@dataclass(frozen=True)
class Plan:
    """What is done to a server, one after the other.

    rates, users: a run for each.
    trace: a file of recorded traffic, of a `kind` in `_READERS`, and by how
        much its times are multiplied.

    Raises:
        ValueError: there is nothing to do, the file is of another kind, or a
            share comes before a run with all at once.
    """

    rates: list[Rate]
    users: list[int]
    trace: Path | None = None
    kind: str = "mooncake"
    scale: float = 1.0

    def __post_init__(self) -> None:
        # Now, for what is wrong later costs the runs before it.
        if not (self.rates or self.users or self.trace):
            raise ValueError("nothing to do: name a --rate, --users or --trace")
        if self.kind not in _READERS:
            known = ", ".join(_READERS)
            raise ValueError(
                f"no kind of trace is {self.kind!r}; known: {known}"
            )
        for rate in self.rates:
            if rate.relative:
                raise ValueError("before a share, name a rate of inf")
            if rate.number == ALL_AT_ONCE:
                break

    def traffic(self, target: Target) -> list[BenchmarkTrace]:
        """The requests of the file; none without one.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it holds no request, or something else.
        """
        if self.trace is None:
            return []
        read, count = _READERS[self.kind], target.work.requests
        traces = read(str(self.trace), target.tokenizer, count)
        if not traces:
            raise ValueError(f"{self.trace} holds no request")
        return scale_traces(traces, self.scale)


def run_online(
    url: str,
    api_key: str,
    work: Workload,
    plan: Plan,
    tokenizer: str | None,
    say: Say,
) -> Report:
    """Run a plan against the server at `url`; a row for every run.

    Raises:
        FileNotFoundError, ValueError: as for `Plan.traffic`.
        ValueError: there is no such server, or it refuses a request.
    """
    loaded = load_tokenizer(tokenizer) if tokenizer else None

    async def run() -> Report:
        # What is sent again would have waited for twice as long.
        # aiohttp: it takes half as long for a token as what is there without
        # it, and thousands come in a second.
        async with OpenAI(
            base_url=url,
            api_key=api_key,
            max_retries=0,
            http_client=DefaultAioHttpClient(),
        ) as client:
            return await measure_online(client, work, plan, loaded, say)

    try:
        return asyncio.run(run())
    except OpenAIError as error:
        # What lies below it says more than "Connection error.", or even
        # "timed out" where nobody listens.
        below = isinstance(error, APIConnectionError) and error.__cause__
        raise ValueError(f"{url}: {below or error}") from None


async def measure_online(
    client: OpenAI, work: Workload, plan: Plan, tokenizer: Any, say: Say
) -> Report:
    """The same with a client; no run has prompts of another one."""
    model = await get_model_name(client)
    target = Target(client, model, work, tokenizer)
    traffic = plan.traffic(target)
    await target.replay(target.messages(UNTIMED)[:WARM_UP])
    report = new_report(
        f"{work.requests} requests of {work.shortest} to {work.longest} tokens",
        server=str(client.base_url),
        model=model,
    )
    await _run_rates(target, plan.rates, report, say)
    for number, users in enumerate(plan.users, 1 + len(plan.rates)):
        results = await target.concurrent(target.messages(number), users)
        add_row(report, f"{users} users", results, say)
    if plan.trace is not None:
        results = await target.replay(traffic)
        add_row(report, plan.trace.name, results, say)
    return report


async def _run_rates(
    target: Target, rates: list[Rate], report: Report, say: Say
) -> None:
    most = 0.0
    for number, rate in enumerate(rates, 1):
        wanted = rate.number * (most if rate.relative else 1.0)
        traces = arrivals(target.messages(number), wanted, Random(number))
        label = "all at once" if wanted == ALL_AT_ONCE else f"{wanted:.2f}/s"
        label += f" ({rate.number:.0%})" if rate.relative else ""
        done = add_row(report, label, await target.replay(traces), say)
        if wanted == ALL_AT_ONCE:
            most = done


def new_report(title: str, **setup: Any) -> Report:
    """An empty table for `add_row`."""
    times = [
        f"{what} p{p} ms" for what in ("first", "gap") for p in PERCENTILES
    ]
    columns = ["load", "requests/s", "tokens/s", *times]
    return Report(title, columns, setup=setup)


def add_row(
    report: Report, label: str, results: list[RawResult], say: Say
) -> float:
    """Add what came of a run; returns how many requests it did a second.

    Raises:
        ValueError: no answer had any text.
    """
    found = process_benchmark_results(results)
    if found is None:
        raise ValueError(f"{label}: no answer has any text")
    answers = found.raw_data
    begin = min(one.tics[0] for one in answers)
    seconds = max(one.tics[-1] for one in answers) - begin
    row: dict[str, Value] = {
        "load": label,
        "requests/s": len(answers) / seconds,
        "tokens/s": sum(one.output_len for one in answers) / seconds,
    }
    row |= _percentiles("first", [one.first for one in answers])
    row |= _percentiles("gap", [gap for one in answers for gap in one.gaps])
    report.rows.append(row)
    say(f"{label}: {len(answers)} answers in {seconds:.1f} s")
    return len(answers) / seconds


def _percentiles(what: str, seconds: list[float]) -> dict[str, Value]:
    if not seconds:  # answers of a single piece have no gaps
        return {}
    return {
        f"{what} p{p} ms": float(np.percentile(seconds, p)) * 1e3
        for p in PERCENTILES
    }
