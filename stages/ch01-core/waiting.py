"""How long a second user waits at step 0, whose loop knows one prompt only."""

import sys
from pathlib import Path
from runpy import run_path
from time import perf_counter

STAGES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(STAGES.parent))

import torch
import typer

from tools.stagekit import measured, model_path

Engine = run_path(str(STAGES / "ch00-step0" / "engine.py"))["Engine"]


def main(model: str = "qwen3-tiny", device: str = "cpu") -> None:
    """Ask for 1 to 256 tokens, then time the first token of a short question."""
    engine = Engine(model_path(model), device, torch.float32)
    list(engine.generate([54, 460, 30], 8))  # the first calls are slower
    for before in (0, 1, 16, 256):
        start = perf_counter()
        list(engine.generate([51, 258, 220, 447, 313], before))
        next(engine.generate([54, 460, 30], 2))
        wait = measured(1000 * (perf_counter() - start), "ms")
        print(f"after an answer of {before:3} tokens: first token at {wait}")


if __name__ == "__main__":
    typer.run(main)
