"""Three real replicas: what a policy is worth, what the router costs, and a death.

python tools/bench_routing.py

Users hold conversations of several turns, eight at a time; each turn repeats all before
it. Counted is the share of the prompts' tokens that was in a prefix cache. Then one
replica is killed while all three stream. Every policy gets a deployment of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Annotated, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))
os.environ["OMP_NUM_THREADS"] = "1"

import httpx2  # noqa: E402
import typer  # noqa: E402

from tests.deployed import Deployed, converse, kill  # noqa: E402
from tests.live import GREEDY, events, wait_until  # noqa: E402
from tools.models import model_path  # noqa: E402
from tools.stagekit import measured  # noqa: E402

COUNT = 3


def start(folder: Path, policy: str) -> Deployed:
    """A deployment that is ready."""
    options = ["--replicas", str(COUNT), "--served-model-name", "tiny"]
    found = Deployed(
        folder / policy,
        model_path("qwen3-tiny"),
        *options,
        *("--policy", policy),
    )
    found.wait_ready(300)
    return found


def hold_talks(deployed: Deployed, policy: str, count: int) -> float:
    """Conversations; prints and returns the hit rate."""
    begin = time.perf_counter()
    url = f"http://127.0.0.1:{deployed.port}"
    prompt, cached = asyncio.run(converse(url, "tiny", count))
    seconds = time.perf_counter() - begin
    share = cached / prompt
    print(
        f"{policy:8}{measured(share * 100, '%', 0)} of {prompt:,} prompt tokens "
        f"cached, {measured(seconds, 's')}",
        flush=True,
    )
    return share


def time_stream(url: str, first: int) -> tuple[float, float]:
    """Milliseconds to the first event of a stream, and from one to the next."""
    body = {"model": "tiny", "prompt": [first, 5, 6, 7], "max_tokens": 32}
    times = [time.perf_counter()]
    with (
        httpx2.Client(timeout=60) as http,
        http.stream(
            "POST",
            f"{url}/v1/completions",
            json=body | GREEDY | {"stream": True},
        ) as answer,
    ):
        times += [
            time.perf_counter()
            for line in answer.iter_lines()
            if line.startswith("data: {")
        ]
    each = (times[-1] - times[1]) / (len(times) - 2)
    return (times[1] - times[0]) * 1e3, each * 1e3


def compare_times(deployed: Deployed, rounds: int) -> None:
    """A replica asked directly, and through the router, in turn."""
    urls = {
        "a replica": next(iter(deployed.open_ones().values())),
        "the router": f"http://127.0.0.1:{deployed.port}",
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in urls}
    for i in range(-3, rounds):  # the first ones warm up
        for k, (name, url) in enumerate(urls.items()):
            one = time_stream(url, 20 + 2 * i + k)  # no prefix known
            if i >= 0:
                found[name].append(one)
    for name, times in found.items():
        first, each = (median(column) for column in zip(*times, strict=True))
        print(
            f"{name:11}{measured(first, 'ms to the first token', 2)}, "
            f"{measured(each, 'ms a token', 2)}"
        )


def stream(deployed: Deployed) -> bool:
    """Read a long stream; whether it came to its end without an error."""
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 1000}
    with deployed.open(
        "/v1/completions", body | GREEDY | {"stream": True}
    ) as answer:
        found: list[Any] = list(events(answer))
    assert found[-1] == "[DONE]"
    return not any("error" in event for event in found[:-1])


def complete(deployed: Deployed, number: int) -> float:
    """Ask for a short answer; the seconds that it took."""
    begin = time.perf_counter()
    body = {"model": "tiny", "prompt": [number, 5, 6], "max_tokens": 4}
    status, made = deployed.post("/v1/completions", body | GREEDY)
    assert status == 200, made
    return time.perf_counter() - begin


def kill_one(deployed: Deployed) -> None:
    """Kill a server while all stream, and look at everybody's fate."""
    before = deployed.open_ones()
    with ThreadPoolExecutor(60) as pool:
        streams = [pool.submit(stream, deployed) for _ in range(12)]
        wait_until(
            lambda: (
                sum(r["in_flight"] for r in deployed.replicas().values()) == 12
            ),
            30,
        )
        time.sleep(0.5)  # for their first tokens
        name, url = next(iter(before.items()))
        hit = deployed.replicas()[name]["in_flight"]
        kill(deployed.process_of(url))
        begin = time.perf_counter()
        later = [pool.submit(complete, deployed, 8 + i) for i in range(40)]
        whole = sum(one.result(120) for one in streams)
        longest = max(one.result(120) for one in later)
    print(f"killed one of {COUNT}; of 12 streams it had {hit}")
    print(
        f"  streams to their end: {whole}, with an error at theirs: {12 - whole}"
    )
    print(f"  asked afterwards: 40, answered: {len(later)}, ", end="")
    print("the longest took", measured(longest, "s"))
    wait_until(lambda: len({*deployed.open_ones()} - {name}) == COUNT, 120)
    print(
        "  another in its place after",
        measured(time.perf_counter() - begin, "s"),
    )


def main(
    talks: Annotated[int, typer.Option(min=1, help="conversations")] = 500,
    rounds: Annotated[int, typer.Option(min=3, help="streams to time")] = 20,
) -> None:
    """Measure both policies; the second deployment also serves the rest."""
    print(f"{talks} conversations of 4 turns on {COUNT} replicas")
    rates = {}
    with tempfile.TemporaryDirectory() as place:
        for policy in ("random", "prefix"):
            deployed = start(Path(place), policy)
            with deployed:
                rates[policy] = hold_talks(deployed, policy, talks)
                if policy == "prefix":
                    ratio = rates["prefix"] / rates["random"]
                    print("prefix by random:", measured(ratio, "x", 2))
                    compare_times(deployed, rounds)
                    kill_one(deployed)
    if ratio < 1.5:
        raise SystemExit("error: that is less than 1.5")


if __name__ == "__main__":
    typer.run(main)
