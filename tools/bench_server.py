"""What the server adds to `LLM.generate`: ms to the first token, and ms a token.

python tools/bench_server.py

The same prompts, one at a time, go to `LLM.generate` in this process and to a server
as a stream, in turn. Both compute with one thread. Medians over all rounds.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))
os.environ["OMP_NUM_THREADS"] = "1"

import httpx2  # noqa: E402
import typer  # noqa: E402

from minisgl.llm import LLM  # noqa: E402
from minisgl.sampling_params import SamplingParams  # noqa: E402
from tools.models import model_path  # noqa: E402
from tools.stagekit import measured  # noqa: E402


@dataclass
class Times:
    """In ms: to the first token of an answer, and for each token after it."""

    first: list[float] = field(default_factory=list)
    each: list[float] = field(default_factory=list)

    def note(self, first: float, whole: float, tokens: int) -> None:
        """Seconds to the first token and to the last one of `tokens`."""
        self.first.append(1000 * first)
        self.each.append(1000 * (whole - first) / (tokens - 1))

    @property
    def medians(self) -> tuple[float, float]:
        return median(self.first), median(self.each)


def time_offline(
    llm: LLM, prompt: list[int], tokens: int, times: Times
) -> None:
    """An answer of one token, then one of `tokens` to a prompt as new."""
    seconds = []
    for count in (1, tokens):
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        # Another first token, so that the prefix cache has nothing of it.
        prompt = [prompt[0] + 1, *prompt[1:]]
        begin = time.perf_counter()
        llm.generate([prompt], params, progress=False)
        seconds.append(time.perf_counter() - begin)
    times.note(seconds[0], seconds[1], tokens)


def time_online(
    http: httpx2.Client, prompt: list[int], tokens: int, times: Times
) -> None:
    """A stream, to its first event with text and to its last."""
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    begin, first = time.perf_counter(), 0.0
    with http.stream("POST", "/v1/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - begin
    times.note(first, time.perf_counter() - begin, tokens)


def main(
    model: Annotated[str, typer.Option(help="name or folder")] = "qwen3-tiny",
    rounds: Annotated[int, typer.Option(min=1)] = 50,
    prompt_tokens: Annotated[int, typer.Option(min=2)] = 64,
    tokens: Annotated[int, typer.Option(min=2)] = 32,
) -> None:
    """Time both, in turn, and print what the server adds."""
    from tests.live import Live

    folder = model_path(model)
    llm = LLM(
        str(folder), dtype="float32", device="cpu", num_page_override=4096
    )
    offline, online = Times(), Times()
    with (
        tempfile.TemporaryDirectory() as place,
        Live(Path(place), folder) as server,
    ):
        url = f"http://127.0.0.1:{server.wait_ready().port}"
        with httpx2.Client(base_url=url, timeout=120) as http:
            for i in range(rounds + 3):
                if i == 3:  # what came before was for warming up
                    offline, online = Times(), Times()
                prompt = [3 * i % 400, *range(prompt_tokens - 1)]
                time_offline(llm, prompt, tokens, offline)
                time_online(http, prompt, tokens, online)
    show("LLM.generate", *offline.medians)
    show("server", *online.medians)
    pairs = zip(online.medians, offline.medians, strict=True)
    show("it adds", *(there - here for there, here in pairs))


def show(name: str, first: float, each: float) -> None:
    """A line of the table."""
    to_first = measured(first, "ms to the first token", 2)
    print(f"{name:13}", to_first + ",", measured(each, "ms a token", 2))


if __name__ == "__main__":
    typer.run(main)
