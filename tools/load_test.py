"""Many clients at once, some of which leave; every answer is checked.

python tools/load_test.py --requests 2000 --clients 64

Starts a server on a small model. A client asks for one of many prompts with shared
beginnings, in a stream or not; one in ten goes away at a random moment. An answer must
be the text of transformers' greedy ids. At the end no process may be missing, nothing
may run, every page must be free or cached, and memory must have stopped growing.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import httpx2  # noqa: E402
import typer  # noqa: E402

from tools.models import model_path  # noqa: E402
from tools.stagekit import load_tokenizer, measured  # noqa: E402

MB = 1e6
# What memory may still grow by between the middle of a run and its end.
GROWTH, SLACK = 1.05, 8 * MB


@dataclass(frozen=True)
class Load:
    """What is done to which server.

    url: of the server; folder: of its model.
    pids: its processes, the API server first.
    leaving: the share of clients that do not wait for the end.
    """

    url: str
    folder: Path
    pids: tuple[int, ...]
    requests: int = 2000
    clients: int = 64
    leaving: float = 0.1
    seed: int = 0


@dataclass
class Report:
    """What came of it.

    memory: bytes of every process that are its own, at start, middle and end.
    """

    answered: int = 0
    left: int = 0
    tokens: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    died: list[int] = field(default_factory=list)
    memory: list[dict[int, int]] = field(default_factory=list)

    def check(self) -> None:
        """AssertionError unless all is well."""
        assert not self.wrong, f"{len(self.wrong)} wrong: {self.wrong[0]}"
        assert not self.failed, f"{len(self.failed)} failed: {self.failed[0]}"
        assert not self.died, f"processes died: {self.died}"
        assert self.answered, "nothing was answered"
        _, middle, end = self.memory
        for pid, size in end.items():
            assert size <= GROWTH * middle[pid] + SLACK, (
                f"process {pid} has grown from {middle[pid] / MB:.0f} to"
                f" {size / MB:.0f} MB"
            )


@dataclass(frozen=True)
class Question:
    """A prompt and the text that goes with it."""

    prompt: list[int]
    max_tokens: int
    answer: str


def questions(folder: Path, seed: int) -> Iterator[Question]:
    """Without end: parts of fixed references, so that prompts share beginnings."""
    from tests.parity import prompts, reference

    draw, tokenizer = random.Random(seed), load_tokenizer(folder)
    pool = [(ids, reference(folder, ids, 64).ids) for ids in prompts(folder)]
    while True:
        ids, answer = draw.choice(pool)
        begin = draw.randrange(0, 32)
        size = draw.randrange(1, 32)
        text = tokenizer.decode(
            answer[begin : begin + size], skip_special_tokens=True
        )
        yield Question(ids + answer[:begin], size, text)


class Clients:
    """All clients of a run."""

    def __init__(self, load: Load) -> None:
        self.load, self.report = load, Report()
        self._questions = questions(load.folder, load.seed)
        self._draw = random.Random(load.seed)
        self._numbers = count()
        self._waited = 0.2  # seconds that an answer takes, about

    async def run(self) -> Report:
        begin = time.perf_counter()
        self._note_memory()
        http = httpx2.AsyncClient(
            base_url=self.load.url,
            limits=httpx2.Limits(max_connections=None),
            timeout=120,
        )
        async with http, asyncio.TaskGroup() as group:
            for _ in range(self.load.clients):
                group.create_task(self._client(http))
        self.report.seconds = time.perf_counter() - begin
        self._note_memory()
        return self.report

    async def _client(self, http: httpx2.AsyncClient) -> None:
        while (number := next(self._numbers)) < self.load.requests:
            if number == self.load.requests // 2:
                self._note_memory()
            leaves = self._draw.random() < self.load.leaving
            patience = self._draw.uniform(0, self._waited) if leaves else 120
            question, stream = next(self._questions), self._draw.random() < 0.5
            begin = time.perf_counter()
            try:
                async with asyncio.timeout(patience):
                    text = await _ask(http, question, stream)
            except TimeoutError:
                if leaves:
                    self.report.left += 1
                else:
                    self.report.failed.append(f"request {number}: no answer")
            except (httpx2.HTTPError, ValueError, KeyError) as error:
                self.report.failed.append(f"request {number}: {error!r}")
            else:
                self._waited = time.perf_counter() - begin
                self._compare(number, question, text)

    def _compare(self, number: int, question: Question, text: str) -> None:
        self.report.answered += 1
        self.report.tokens += question.max_tokens
        if text != question.answer:
            wrong = f"request {number}: {text!r}, not {question.answer!r}"
            self.report.wrong.append(wrong)

    def _note_memory(self) -> None:
        sizes = {pid: own_bytes(pid) for pid in self.load.pids}
        gone = [pid for pid, size in sizes.items() if size is None]
        self.report.died = sorted({*self.report.died, *gone})
        self.report.memory.append({p: s for p, s in sizes.items() if s})


async def _ask(
    http: httpx2.AsyncClient, question: Question, stream: bool
) -> str:
    body = {
        "prompt": question.prompt,
        "max_tokens": question.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
    }
    if not stream:
        response = await http.post("/v1/completions", json=body)
        response.raise_for_status()
        whole: str = response.json()["choices"][0]["text"]
        return whole
    parts: list[str] = []
    async with http.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                parts.append(event["choices"][0]["text"])
    return "".join(parts)


def own_bytes(pid: int) -> int | None:
    """Memory that a process shares with nobody; None when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return int(sizes[0]) * 1024 if sizes else None  # a zombie has none


def run_load(load: Load) -> Report:
    """All of it; returns what came of it, unchecked."""
    return asyncio.run(Clients(load).run())


def health(url: str) -> dict[str, int]:
    """What the scheduler counts."""
    found: dict[str, int] = httpx2.get(f"{url}/health").json()["numbers"]
    return found


def assert_idle(url: str, seconds: float = 5.0) -> dict[str, int]:
    """Nothing runs, and every page is free or cached."""
    until = time.monotonic() + seconds
    while (found := health(url))["running"] + found["waiting"]:
        assert time.monotonic() < until, f"not idle: {found}"
        time.sleep(0.05)
    assert found["free_pages"] + found["cached_pages"] == found["total_pages"]
    return found


def show(report: Report, names: dict[int, str], idle: dict[str, int]) -> None:
    """A few lines."""
    rate = measured(report.tokens / report.seconds, "tokens/s", 0)
    print(f"answered {report.answered}, left {report.left}, {rate}")
    print(f"wrong {len(report.wrong)}, failed {len(report.failed)}")
    print("MB of its own          start   middle      end")
    for pid, name in names.items():
        sizes = [stage.get(pid, 0) / MB for stage in report.memory]
        print(f"{name:20}", *(f"{size:8.1f}" for size in sizes))
    print("health:", ", ".join(f"{k} {v}" for k, v in idle.items()))


def main(
    model: Annotated[str, typer.Option(help="name or folder")] = "qwen3-tiny",
    requests: Annotated[int, typer.Option(min=1)] = 2000,
    clients: Annotated[int, typer.Option(min=1)] = 64,
    leaving: Annotated[float, typer.Option(min=0, max=1)] = 0.1,
    seed: int = 0,
    tokenizers: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Start a server, run the load, print and check what came of it."""
    from tests.live import Live, has_torch

    folder = model_path(model)
    with tempfile.TemporaryDirectory() as place:
        options = ("--num-tokenizer", str(tokenizers))
        with Live(Path(place), folder, *options) as server:
            server.wait_ready()
            url = f"http://127.0.0.1:{server.port}"
            names = {server.process.pid: "API server"}
            for pid in server.children():
                names[pid] = "scheduler" if has_torch(pid) else "tokenizer"
            chosen: dict[str, Any] = {
                "requests": requests,
                "clients": clients,
                "leaving": leaving,
                "seed": seed,
            }
            report = run_load(Load(url, folder, tuple(names), **chosen))
            show(report, names, assert_idle(url))
            report.check()


if __name__ == "__main__":
    typer.run(main)
