"""A long prompt arrives while three answers are being written."""

import sys
from pathlib import Path
from typing import Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
import typer
from steps import serve

from tools.stagekit import measured

SETTINGS = [(8192, 0), (64, 0), (64, 1), (64, 2), (24, 1)]


@torch.inference_mode()
def main(
    model: str = "qwen3-tiny", device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """Serve the same requests under five settings."""
    logs = {pair: serve(model, device, *pair) for pair in SETTINGS}
    print("budget  in a row  steps until the long prompt's first token")
    for (budget, in_a_row), log in logs.items():
        print(f"{budget:6}{in_a_row:10}  {log.picture()}")
    print("d decode, P prefill\n")
    print(f"{'steps of':>36}{'time of':>11}")
    print("budget  in a row  pause  prompt  all  pause, prompt, all")
    for (budget, in_a_row), log in logs.items():
        pause, prompt = log.longest_wait(), log.first_token()
        steps = f"{pause.steps:7}{prompt.steps:8}{len(log.steps):5}"
        times = (pause.seconds, prompt.seconds, log.total)
        shown = (measured(1000 * seconds, "ms") for seconds in times)
        print(f"{budget:6}{in_a_row:10}{steps} ", *shown)
    first, *others = (log.answers for log in logs.values())
    same = all(answers == first for answers in others)
    print("\nthe answers are equal:", "yes" if same else "no")


if __name__ == "__main__":
    typer.run(main)
