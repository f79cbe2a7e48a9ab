"""Clients of any server that speaks OpenAI's API, with a clock."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx2
from openai import AsyncOpenAI as OpenAI
from openai import OpenAIError
from rich import console, progress

from minisgl.benchmark.traces import (
    BenchmarkTrace,
    generate_prompt,
    read_mooncake_trace,
    read_qwen_trace,
    scale_traces,
)

__all__ = [
    "BenchOneResult",
    "BenchmarkResult",
    "BenchmarkTrace",
    "RawResult",
    "benchmark_one",
    "benchmark_one_batch",
    "benchmark_trace",
    "generate_prompt",
    "get_model_name",
    "process_benchmark_results",
    "read_mooncake_trace",
    "read_qwen_trace",
    "scale_traces",
]

T = TypeVar("T")


@dataclass(frozen=True)
class RawResult:
    """An answer as it came.

    input_len: tokens of the prompt, as the server counts them; else what the
        caller said.
    output_len: tokens of the answer; the pieces of it if the server does not
        count.
    message: the prompt.
    tics: seconds on one clock: when it was asked, then when each piece came.
    """

    input_len: int | None
    output_len: int
    message: str
    tics: list[float]


@dataclass(frozen=True)
class BenchOneResult:
    """The times of one answer, as in `RawResult`."""

    tics: list[float]
    input_len: int
    output_len: int

    def as_json(self) -> list[float]:
        """One flat list."""
        return [self.input_len, self.output_len, *self.tics]

    @staticmethod
    def from_json(raw: list[float]) -> BenchOneResult:
        """What `as_json` made."""
        return BenchOneResult(raw[2:], int(raw[0]), int(raw[1]))

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.tics[1] - self.tics[0]

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece and the next."""
        pairs = zip(self.tics[1:], self.tics[2:], strict=False)
        return [later - earlier for earlier, later in pairs]


@dataclass(frozen=True)
class BenchmarkResult:
    """The times of many answers."""

    raw_data: list[BenchOneResult]

    def as_json(self) -> list[list[float]]:
        return [one.as_json() for one in self.raw_data]

    @staticmethod
    def from_json(raw: list[list[float]]) -> BenchmarkResult:
        return BenchmarkResult([BenchOneResult.from_json(one) for one in raw])


async def get_model_name(client: OpenAI) -> str:
    """What the server calls its model; the first one if it has several."""
    async for model in client.models.list():
        return model.id
    raise ValueError("the server has no model")


async def benchmark_one(
    client: OpenAI,
    prompt: str,
    output_length: int,
    model: str,
    *,
    pbar: bool = True,
    extra_body: dict[str, Any] | None = None,
    input_length: int | None = None,
) -> RawResult:
    """Ask for one answer, and note when each piece of it comes.

    output_length: most tokens of it, and with `extra_body` left out exactly so
        many, if the server knows `ignore_eos`.
    pbar: nothing is shown of a single one.
    input_length: tokens of the prompt, should the server not count them.

    Raises:
        openai.OpenAIError: the server refused it, cannot be reached, or failed
            in the middle of the answer.
    """
    del pbar
    pieces = 0
    counted: dict[str, Any] = {}
    tics = [time.perf_counter()]
    # Raw events: turning each into objects takes longer than a token may.
    async with client.chat.completions.with_streaming_response.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=output_length,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True} if extra_body is None else extra_body,
    ) as response:
        async for line in _lines(response.iter_bytes()):
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            event = json.loads(line[6:].decode(errors="replace"))
            if event.get("error"):
                raise OpenAIError(f"an answer failed: {event['error']}")
            counted = event.get("usage") or counted
            if _has_text(event):
                pieces += 1
                tics.append(now)
    return RawResult(
        counted.get("prompt_tokens", input_length),
        counted.get("completion_tokens", pieces),
        prompt,
        tics,
    )


async def _lines(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """What comes, line by line; nothing but a line feed ends one.

    Raises:
        openai.OpenAIError: it breaks off.
    """
    rest = b""
    try:
        async for part in parts:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line
    except httpx2.HTTPError as error:
        raise OpenAIError(f"an answer broke off: {error!r}") from error
    yield rest


def _has_text(event: dict[str, Any]) -> bool:
    """Whether an event shows a client more of the answer."""
    delta = event["choices"][0]["delta"] if event.get("choices") else {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


async def benchmark_one_batch(
    client: OpenAI,
    prompts: list[str],
    output_lengths: list[int] | int,
    model: str,
    *,
    extra_body: dict[str, Any] | None = None,
    input_lengths: list[int | None] | None = None,
    pbar: bool = True,
) -> list[RawResult]:
    """Ask for an answer to every prompt at once; raises as `benchmark_one`."""
    count = len(prompts)
    if isinstance(output_lengths, int):
        output_lengths = [output_lengths] * count
    sizes = input_lengths or [None] * count
    return await gather(
        [
            benchmark_one(
                client,
                *(prompt, length, model),
                extra_body=extra_body,
                input_length=size,
            )
            for prompt, length, size in zip(
                prompts, output_lengths, sizes, strict=True
            )
        ],
        pbar,
    )


async def benchmark_trace(
    client: OpenAI,
    msgs: list[BenchmarkTrace],
    model: str,
    *,
    pbar: bool = True,
    extra_body: dict[str, Any] | None = None,
) -> list[RawResult]:
    """Ask each at its time, counted from now; raises as `benchmark_one`.

    A request has waited since it was due, also where this process was late.
    """
    begin = time.perf_counter()

    async def ask(msg: BenchmarkTrace) -> RawResult:
        due = begin + msg.timestamp
        await asyncio.sleep(due - time.perf_counter())
        result = await benchmark_one(
            client,
            *(msg.message, msg.output_length, model),
            extra_body=extra_body,
            input_length=msg.input_length,
        )
        return replace(result, tics=[due, *result.tics[1:]])

    return await gather([ask(msg) for msg in msgs], pbar)


async def gather(work: Sequence[Coroutine[Any, Any, T]], pbar: bool) -> list[T]:
    """What all of these return; the first that fails ends the others."""
    hidden = not (pbar and sys.stderr.isatty())
    with progress.Progress(
        console=console.Console(stderr=True), transient=True, disable=hidden
    ) as bar:
        task = bar.add_task("Answers", total=len(work))

        async def count(one: Coroutine[Any, Any, T]) -> T:
            result = await one
            bar.advance(task)
            return result

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(count(one)) for one in work]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return [one.result() for one in tasks]


def process_benchmark_results(
    raw_data: list[RawResult], tokenizer: Any = None
) -> BenchmarkResult | None:
    """The times alone; None if no answer has any text.

    tokenizer: counts the prompts' tokens where the server has not.
    """
    found = []
    for raw in raw_data:
        size = raw.input_len
        if size is None and tokenizer is not None:
            size = len(tokenizer.encode(raw.message))
        if len(raw.tics) > 1:
            found.append(BenchOneResult(raw.tics, size or 0, raw.output_len))
    return BenchmarkResult(found) if found else None
