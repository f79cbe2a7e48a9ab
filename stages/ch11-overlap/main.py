"""The order of events with overlap and without, and what the host's work costs."""

import sys
from pathlib import Path
from typing import Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import typer
from timeline import TimedLLM

from minisgl.core import SamplingParams
from tools.stagekit import measured, model_path
from tools.zoo.places import ModelError

PROMPTS = [[*range(start, start + 20)] for start in range(0, 400, 50)]


def load(model: str, device: str, dtype: str, overlap: bool) -> TimedLLM:
    try:
        path = str(model_path(model))
        return TimedLLM(path, dtype=dtype, device=device, overlap=overlap)
    except (ModelError, ValueError) as error:
        raise SystemExit(str(error)) from None


def main(
    model: str = "qwen3-tiny",
    device: Literal["cpu", "cuda"] = "cpu",
    dtype: Literal["float32", "bfloat16"] = "float32",
    tokens: int = 48,
) -> None:
    """Answer three prompts turn by turn, then eight for the clock."""
    limits = [SamplingParams(max_tokens=n) for n in (16, 8, 4)]
    long = SamplingParams(max_tokens=tokens, ignore_eos=True)
    answers, table = [], []
    for name, overlap in {"off": False, "on": True}.items():
        llm = load(model, device, dtype, overlap)
        first = llm.generate(PROMPTS[:1], SamplingParams(max_tokens=6))
        # From here on the sixth token of request a is an end token.
        llm.eos_token_ids = frozenset(first[0]["token_ids"][5:])
        llm.forget()
        answers.append(llm.generate(PROMPTS[:3], limits))
        print(f"turn  overlap {name}")
        for turn, events in enumerate(llm.turns, 1):
            print(f"{turn:4}  " + "".join(f"{e:24}" for e in events).rstrip())
        llm.forget()
        answers[-1] += llm.generate(PROMPTS, long)
        times = [1000 * t / len(llm.turns) for t in llm.spent.values()]
        times.append(2 * times[0] - sum(times))
        cells = [f"{measured(t, 'ms', 2):>12}" for t in times]
        table.append(f"{name:7}{len(llm.turns):5}" + "".join(cells))
    heads = ("a turn", "forward", "waiting", "the rest")
    print("\noverlap turns" + "".join(f"{head:>12}" for head in heads))
    print(*table, sep="\n")
    print("equal answers:", "yes" if answers[0] == answers[1] else "no")


if __name__ == "__main__":
    typer.run(main)
