"""Decode steps recorded and padded, and what a forgotten copy does to them."""

import sys
from pathlib import Path
from statistics import median
from typing import Any, Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from noted import FIELDS, NotedLLM, forgetting

from minisgl.core import SamplingParams
from tools.stagekit import measured, model_path, run

PROMPTS = [[*range(start, start + 20)] for start in range(0, 250, 50)]
LIMITS = [
    SamplingParams(max_tokens=n, ignore_eos=True) for n in (12, 10, 8, 8, 5)
]
SIZES = [1, 2, 4, 8]


def answers(llm: NotedLLM) -> list[list[int]]:
    """The tokens of five prompts that end one after the other."""
    return [a["token_ids"] for a in llm.generate(PROMPTS, LIMITS)]


def main(
    model: str = "qwen3-tiny", device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """Answer launch by launch, then by replays, then by wrong replays."""
    path = str(model_path(model))
    settings: dict[str, Any] = {
        "device": device,
        "dtype": "float32" if device == "cpu" else "bfloat16",
        "max_seq_len_override": 256,
    }
    eager = NotedLLM(path, **settings, cuda_graph_max_bs=0)
    recorded = NotedLLM(path, **settings, cuda_graph_bs=SIZES)
    print("recorded for", *recorded.engine.graph_runner.graph_bs_list)
    expected, found = answers(eager), answers(recorded)
    print(*recorded.table(), sep="\n")
    print("equal answers:", "yes" if found == expected else "no")
    for name, llm in {"launched": eager, "replayed": recorded}.items():
        answers(llm)
        spent = measured(1000 * median(llm.seconds), "ms", 2)
        print(f"a decode step {name}: {spent}")
    for field in FIELDS:
        with forgetting(field):
            wrong = answers(NotedLLM(path, **settings, cuda_graph_bs=SIZES))
        equal = sum(a == b for a, b in zip(wrong, expected, strict=True))
        print(f"without a copy of {field:10}: {equal} of 5 answers equal")


if __name__ == "__main__":
    run(main)
