"""The same tokens from 1, 2 and 4 ranks, and what each of them holds."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

from helpers import run_ranks

from minisgl.core import SamplingParams
from tools.stagekit import (
    encode_chat,
    load_tokenizer,
    measured,
    model_path,
    run,
)

QUESTIONS = ["Why is decoding slow?", "What is a rank?", "Count to ten."]


def main(model: str = "qwen3-tiny") -> None:
    """Answer three questions with 1, 2 and 4 ranks, greedily and drawn."""
    folder = model_path(model)
    tokenizer = load_tokenizer(folder)
    prompts = [encode_chat(tokenizer, text) for text in QUESTIONS]
    greedy = SamplingParams(max_tokens=24, ignore_eos=True)
    expected = None
    print("ranks  weights of one  KV of a token  same tokens  a step")
    for size in (1, 2, 4):
        ranks = run_ranks(folder, size, prompts, greedy)
        first = ranks[0]
        expected = expected or first.answers
        same = all(rank.answers == expected for rank in ranks)
        sizes = f"{first.weights:>8,.0f} KiB {first.kv_token:>10.1f} KiB"
        print(f"{size:>5}  {sizes}  {same!s:>11}  {measured(first.pace, 'ms')}")
    drawn = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True)
    ranks = run_ranks(folder, 2, prompts, drawn)
    agree = ranks[0].answers == ranks[1].answers
    print(f"\ndrawn at temperature 1: both ranks agree: {agree}")
    print(f"and it is not the greedy answer: {ranks[0].answers != expected}")
    try:
        run_ranks(folder, 3, prompts, greedy)
    except ValueError as error:
        print(f"\n3 ranks: {error}")


if __name__ == "__main__":
    run(main)
