"""The same requests to our engine, to others, and to ours with parts left out."""

import sys
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from minisgl.benchmark.ablation import measure_ablation
from minisgl.benchmark.offline import measure_offline
from minisgl.benchmark.online import arrivals
from minisgl.benchmark.subject import Subject
from minisgl.benchmark.traces import BenchmarkTrace
from minisgl.benchmark.workload import WORKLOADS, Workload
from tools.stagekit import measured, model_path, run

PEERS = ["static", "continuous", "one-by-one"]
SETTINGS = {"max_running_req": 8, "page_size": 16, "num_page_override": 1024}


def quiet(text: str) -> None:
    """Nobody waits long for a tiny model."""


def main(model: str = "qwen3-tiny", device: str = "cpu") -> None:
    """Draw the reference workload, then measure with smaller ones."""
    drawn = WORKLOADS["gpu"].draw(151936)
    prompts = sum(len(r.prompt) for r in drawn)
    answers = sum(r.output for r in drawn)
    print(
        f"{len(drawn)} requests: {prompts:,} prompt tokens, {answers:,} to make"
    )

    path = str(model_path(model))
    subject = Subject(path, False, "float32", device, SETTINGS)
    work = Workload(16, 8, 48)
    print(f"\n{work.requests} requests  {'tokens/s':>12}   ours is")
    for row in measure_offline(subject, work, PEERS, 1, quiet).rows:
        speed = measured(row["tokens/s"], "tokens/s", 0)
        ratio = measured(float(row["ours is"].split()[0]), "x", 2)
        print(f"{row['']:11}  {speed:>15}  {ratio:>8}")

    chunks = SETTINGS | {"max_extend_tokens": 64}
    subject = Subject(path, False, "float32", device, chunks)
    work = Workload(24, 8, 24, shared=48, long=256)
    print(f"\n{'without':23}  {'tokens/s':>14}   longest gap  hits  equal")
    for row in measure_ablation(subject, work, 1, quiet).rows:
        if "equal answers" not in row:
            print(f"{row['without']:23}  {row['tokens/s']}")
            continue
        speed = measured(row["tokens/s"], "tokens/s", 0)
        gap = measured(row["gap p99 ms"], "ms")
        cells = f"{speed:>15}  {gap:>10}  {row['hit rate']:>4}"
        print(f"{row['without']:23}  {cells}  {row['equal answers']}")

    traces = [BenchmarkTrace(0.0, "", 1)] * 8
    times = [t.timestamp for t in arrivals(traces, 10.0, Random(0))]
    print("\n10 a second, at:", *(f"{t:.2f}" for t in times))


if __name__ == "__main__":
    run(main)
