"""A small pool serves many requests and never leaks; broken books are seen."""

import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
import typer
from workload import abort_oldest, fail_some, requests, serve, start

PAGES, PAGE_SIZE, EVERY = 48, 4, 25


@torch.inference_mode()
def main(
    model: str = "qwen3-tiny", device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """Watch a small pool, compare answers with a large one's, break a count."""
    expected, answers = defaultdict(list), defaultdict(list)
    for replies in serve(start(model, device, 2000, PAGE_SIZE), 0):
        for reply in replies:
            expected[reply.uid].append(reply.next_token)
    scheduler = start(model, device, PAGES, PAGE_SIZE)
    scheduler.engine.sampler.processors.append(fail_some)
    manager, ends = scheduler.cache_manager, Counter()
    print(f"step run wait  {PAGES} pages: # lent, . free")
    for step, replies in enumerate(serve(scheduler, gap=2), 1):
        for reply in replies:
            ends[reply.finish_reason] += reply.finished
            if reply.finish_reason != "error":
                answers[reply.uid].append(reply.next_token)
        if step % EVERY == 0:
            running = len(scheduler.decode_manager.running_reqs)
            waiting = len(scheduler.prefill_manager.pending_list)
            free = len(manager.free_pages)
            bar = "#" * (PAGES - free) + "." * free
            print(f"{step:4} {running:3} {waiting:4}  {bar}")
            ends["abort"] += abort_oldest(scheduler)
    manager.check_integrity()
    print("\nidle: all", len(manager.free_pages), "pages are free")
    print("ends:", ", ".join(f"{n} {why}" for why, n in ends.items() if n))
    tokens = sum(len(m.input_ids) + len(answers[m.uid]) for m in requests())
    times = tokens / PAGES / PAGE_SIZE
    print(f"{tokens} tokens went through, {times:.1f} times the pool")
    same = all(expected[u][: len(ids)] == ids for u, ids in answers.items())
    print("as from a large pool:", "yes" if same else "no")
    whole = manager.free_pages
    for wrong in (whole[1:], torch.cat([whole[1:], whole[-1:]])):
        manager.free_pages = wrong
        try:
            manager.check_integrity()
        except RuntimeError as error:
            print("broken:", error)


if __name__ == "__main__":
    typer.run(main)
