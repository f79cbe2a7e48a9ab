"""A hybrid model: what is reused, what it costs, and two ways to be wrong."""

import sys
from pathlib import Path
from typing import Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from shown import CountingLLM, dirty_rows, memory, plain_cache

from tools.stagekit import measured, model_path, run, transformers_answer

BASE = [*range(20, 420)]
PROMPTS = {
    "new": BASE,
    "the same": BASE,
    "parts at 300": [*BASE[:300], *range(100)],
    "parts there, too": [*BASE[:300], *range(400, 500)],
    "goes on": [*BASE, *range(50)],
    "short": [7, 8, 9],
}
TOKENS = 12


def main(
    model: str = "qwen3.5-tiny", device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """Ask for prompts that share what they share, then do it wrongly."""
    path = model_path(model)
    llm = CountingLLM(path, device)
    for line in memory(llm):
        print(line)
    wanted = {
        name: transformers_answer(path, ids, TOKENS, (), device)
        for name, ids in PROMPTS.items()
    }
    print("\nprompt              tokens  known  reused  as transformers")
    for name, ids in PROMPTS.items():
        answer = llm.ask(ids, TOKENS)
        equal = "yes" if answer == wanted[name] else "no"
        known, reused = llm.last
        print(f"{name:20}{len(ids):6}{known:7}{reused:8}  {equal}")
    first, again = (llm.seconds[name] for name in (0, 1))
    print(f"\nfirst token, new prompt: {measured(1000 * first, 'ms', 1)}")
    print(f"first token, same again: {measured(1000 * again, 'ms', 1)}")

    print("\nanswers as transformers")
    for title, wrong in {
        "keys and values without their state": plain_cache,
        "a row that does not start from zeros": dirty_rows,
    }.items():
        with wrong():
            other = CountingLLM(path, device)
            got = {n: other.ask(ids, TOKENS) for n, ids in PROMPTS.items()}
        equal = sum(got[name] == wanted[name] for name in PROMPTS)
        print(f"{title:38}{equal} of {len(PROMPTS)}")


if __name__ == "__main__":
    run(main)
