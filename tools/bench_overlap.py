"""Overlap scheduling on and off: speed, tokens, and a time line of steps.

Random weights of a real model's shape are made on the device, so no checkpoint is
needed. On a CPU there is nothing to hide behind: the two run alike.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from tools.models import model_path

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    "tiny": {},
}


def make_folder(shape: str, folder: Path) -> Path:
    """A model folder without weights: a config of that shape and a tokenizer."""
    tiny = model_path("qwen3-tiny")
    config = json.loads((tiny / "config.json").read_text()) | SHAPES[shape]
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tiny / name, folder / name)
    return folder


@dataclass
class Span:
    """What one step did: start and end in ms, on the host and on the GPU."""

    schedule: tuple[float, float] = (0.0, 0.0)
    launch: tuple[float, float] = (0.0, 0.0)
    process: tuple[float, float] = (0.0, 0.0)
    device: tuple[float, float] | None = None


@dataclass
class Recorder:
    """Notes when each part of each step ran, without touching the engine."""

    llm: LLM
    spans: list[Span] = field(default_factory=list)
    events: list[tuple[Any, Any]] = field(default_factory=list)

    def start(self) -> None:
        self._synchronize()
        self.base = self._event()
        self.zero = time.perf_counter()
        self.spans, self.events = [], []
        self._processed = 0
        self._wrap(self.llm, "_schedule_next_batch", self._schedule)
        self._wrap(self.llm, "_launch", self._launch)
        self._wrap(self.llm, "_process_last_data", self._process)

    def stop(self) -> None:
        self._synchronize()
        for name in ("_schedule_next_batch", "_launch", "_process_last_data"):
            delattr(self.llm, name)
        for span, (first, last) in zip(self.spans, self.events, strict=True):
            if first is not None:
                times = (self.base.elapsed_time(e) for e in (first, last))
                span.device = tuple(times)

    def _wrap(self, owner: Any, name: str, note: Callable[..., Any]) -> None:
        inner = getattr(owner, name)
        setattr(owner, name, lambda *args: note(inner, *args))

    def _now(self) -> float:
        return (time.perf_counter() - self.zero) * 1e3

    def _schedule(self, inner: Callable[..., Any]) -> Any:
        start = self._now()
        result = inner()
        self._last_schedule = (start, self._now())
        return result

    def _launch(self, inner: Callable[..., Any], forward_input: Any) -> Any:
        if forward_input is None:
            return inner(forward_input)
        stream = self.llm.engine.stream
        start, first = self._now(), self._event(stream)
        result = inner(forward_input)
        self.events.append((first, self._event(stream)))
        self.spans.append(Span(self._last_schedule, (start, self._now())))
        return result

    def _process(self, inner: Callable[..., Any], last_data: Any) -> Any:
        start = self._now()
        inner(last_data)
        if last_data is not None:
            self.spans[self._processed].process = (start, self._now())
            self._processed += 1

    def _event(self, stream: Any = None) -> Any:
        if self.llm.engine.device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def _synchronize(self) -> None:
        if self.llm.engine.device.type == "cuda":
            torch.cuda.synchronize()


def run(
    folder: str,
    overlap: bool,
    device: str,
    dtype: str,
    work: list[tuple[int, int]],
) -> tuple[float, list[list[int]], list[Span]]:
    """Tokens a second, the tokens, and the spans of a second, recorded run."""
    llm = LLM(
        folder,
        dtype,
        device=device,
        overlap=overlap,
        use_dummy_weight=True,
        max_running_req=len(work),
        max_seq_len_override=max(sum(lengths) for lengths in work) + 1,
        page_size=16,
        cache_type="naive",
    )
    vocab = llm.engine.sampler.vocab_size
    rng = random.Random(0)
    prompts = [[rng.randrange(vocab) for _ in range(n)] for n, _ in work]
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for _, n in work]
    llm.generate(prompts, params, progress=False)
    start = time.perf_counter()
    results = llm.generate(prompts, params, progress=False)
    speed = sum(n for _, n in work) / (time.perf_counter() - start)
    recorder = Recorder(llm)
    recorder.start()
    llm.generate(prompts, params, progress=False)
    recorder.stop()
    return speed, [r["token_ids"] for r in results], recorder.spans


def report(
    name: str, speed: float, spans: list[Span], first: int, count: int
) -> None:
    """Print the speed, how long the GPU idled, and some steps in full."""
    print(f"\noverlap {name}: {speed:,.0f} tokens/s, {len(spans)} steps")
    busy = [s.device for s in spans if s.device is not None]
    if busy:
        total = busy[-1][1] - busy[0][0]
        idle = total - sum(end - start for start, end in busy)
        print(
            f"between batches the GPU idles {max(idle, 0) / total:.1%} of the time"
        )
    zero = spans[first].schedule[0]
    print("ms       schedule          launch         process             GPU")
    for number, span in enumerate(spans[first : first + count], first):
        parts = [span.schedule, span.launch, span.process, span.device]
        cells = [
            f"{a - zero:7.2f}-{b - zero:7.2f}" for a, b in filter(None, parts)
        ]
        print(f"{number:4}  " + " ".join(cells))


def main(
    shape: Annotated[str, typer.Option(help=", ".join(SHAPES))] = "tiny",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float32 or bfloat16.")
    ] = "float32",
    requests: Annotated[int, typer.Option(help="How many at once.")] = 64,
    prompt: Annotated[int, typer.Option(help="Longest prompt.")] = 256,
    answer: Annotated[int, typer.Option(help="Longest answer.")] = 256,
) -> None:
    """Run the same requests with overlap off and on and compare."""
    rng = random.Random(1)
    work = [
        (rng.randint(prompt // 2, prompt), rng.randint(answer // 2, answer))
        for _ in range(requests)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(make_folder(shape, Path(scratch)))
        off = run(folder, False, device, dtype, work)
        on = run(folder, True, device, dtype, work)
    middle = min(len(off[2]), len(on[2])) // 2
    report("off", off[0], off[2], middle, 6)
    report("on", on[0], on[2], middle, 6)
    print(
        f"\non is {on[0] / off[0]:.2f} x off; tokens equal: {on[1] == off[1]}"
    )
    if on[1] != off[1]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
