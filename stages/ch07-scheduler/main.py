"""Eight requests join and leave a running batch; then the pool is used up."""

import sys
from pathlib import Path
from textwrap import fill
from time import perf_counter
from typing import Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
import typer
from timeline import life, message, serve, start

from tools.stagekit import measured

# The step in which each request comes in.
ARRIVALS = {0: 1, 1: 1, 2: 1, 3: 4, 4: 5, 5: 10, 6: 11, 7: 26}
WAYS = {
    "one by one": [{uid: 1} for uid in ARRIVALS],
    "four by four": [dict.fromkeys(range(4), 1), dict.fromkeys(range(4, 8), 1)],
    "join and leave": [ARRIVALS],
}


@torch.inference_mode()
def main(
    model: str = "qwen3-tiny", device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """Serve eight requests in three ways, then ask for more."""
    found = []
    for name, groups in WAYS.items():
        scheduler = start(model, device, rows=4, pages=272)
        begin, answers, steps = perf_counter(), {}, []
        for group in groups:
            got, ran = serve(scheduler, group)
            answers, steps = answers | got, steps + ran
        spent = measured(1000 * (perf_counter() - begin), "ms")
        print(f"{name:15}{len(steps):4} steps  {spent}")
        found.append(answers)
    same = found[0] == found[1] == found[2]
    print("the answers are equal:", "yes" if same else "no")
    print("\nstep 1        10        20        30        40")
    for uid, arrival in ARRIVALS.items():
        print(f"{uid:>4} {life(uid, arrival, steps)}")
    scheduler.inbox += [message(9), message(8)]
    for _ in range(100):
        scheduler.normal_loop()
    print("\n" + fill(f"request 9: {scheduler.outbox[0].error}", 72))
    left = scheduler.cache_manager.available_size
    waiting = [req.uid for req in scheduler.prefill_manager.pending_list]
    print(f"{left} tokens left, nobody runs, 100 steps later waits: {waiting}")


if __name__ == "__main__":
    typer.run(main)
