"""Step 0: one prompt, one greedy answer, and how fast it came."""

import sys
from pathlib import Path
from time import perf_counter
from typing import Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
import typer
from engine import Engine

from tools.stagekit import (
    encode_chat,
    load_tokenizer,
    measured,
    model_path,
    transformers_answer,
)
from tools.zoo.places import ModelError


def main(
    model: str = "qwen3-tiny",
    prompt: str = "Why is decoding slow?",
    max_tokens: int = 32,
    device: Literal["cpu", "cuda"] = "cpu",
    dtype: Literal["float32", "bfloat16"] = "float32",
    verify: bool = True,
) -> None:
    """Answer PROMPT greedily; --verify compares with transformers' answer."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device is here: leave out --device cuda")
    try:
        path = model_path(model)
        engine = Engine(path, device, getattr(torch, dtype))
    except (ModelError, ValueError) as error:
        raise SystemExit(str(error)) from None
    tokenizer = load_tokenizer(path)
    ids = encode_chat(tokenizer, prompt)
    print(f"prompt   {prompt!r}: {len(ids)} tokens for {path.name}")
    answer, times = [], [perf_counter()]
    for token in engine.generate(ids, max_tokens):
        answer.append(token)
        times.append(perf_counter())
    print("answer  ", *answer)
    print(f"text     {tokenizer.decode(answer, skip_special_tokens=True)!r}")
    if verify:
        expected = transformers_answer(
            path, ids, max_tokens, engine.config["eos"], device, dtype
        )
        print("equal to transformers:", "yes" if answer == expected else "no")
    print("prefill ", measured(1000 * (times[1] - times[0]), "ms"))
    rate = (len(times) - 2) / (times[-1] - times[1] or 1)
    print("decode  ", measured(rate, "tokens/s"))


if __name__ == "__main__":
    typer.run(main)
