"""Three documents, a device that holds two of them, and questions in turn."""

import sys
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from noted import NotedLLM

from minisgl.core import SamplingParams
from tools.stagekit import measured, model_path, run

DOCUMENTS = [[(37 * i + 11 * d) % 499 for i in range(320)] for d in range(3)]
QUESTIONS = [[7 + n, 9 * n + 3, 5] for n in range(3)]
ONE = SamplingParams(max_tokens=1)
DEVICE, HOST = 800, 0.05
"""Tokens of the pool, and GiB below it."""


def ask(llm: NotedLLM) -> tuple[list[list[int]], float]:
    """Answers about all documents, and the least ms to a first token."""
    answers, spent = [], []
    for question in QUESTIONS:
        for document in DOCUMENTS:
            begin = perf_counter()
            found = llm.generate([document + question], ONE)
            spent.append(perf_counter() - begin)
            answers.append(found[0]["token_ids"])
    # The first question about each document is computed in any case.
    return answers, 1000 * min(spent[len(DOCUMENTS) :])


def main(
    model: str = "qwen3-tiny", device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """Answer without a host tier and with one, by both policies."""
    print(" " * 16 + " computed on device from host   written  first token")
    settings: dict[str, Any] = {
        "dtype": "float32" if device == "cpu" else "bfloat16",
        "device": device,
        "page_size": 16,
        "num_page_override": DEVICE // 16,
    }
    known = []
    for name in ("no host", "write_through", "write_back"):
        if name != "no host":
            settings |= {"host_cache_gb": HOST, "host_cache_policy": name}
        llm = NotedLLM(str(model_path(model)), **settings)
        answers, spent = ask(llm)
        known.append(answers)
        print(f"{name:16}{llm.counts()}  {measured(spent, 'ms'):>11}")
    print("equal answers:", all(answers == known[0] for answers in known))
    print("the tree at the end, what was used last below:")
    print(*llm.tiers(), sep="\n")


if __name__ == "__main__":
    run(main)
