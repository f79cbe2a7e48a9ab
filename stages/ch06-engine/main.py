"""A batch of uneven prompts: one prefill, then decode until all have ended."""

import sys
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Annotated, Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import typer
from by_hand import answer, make_engine, make_reqs, run

from minisgl.utils import load_eos_token_ids
from tools.stagekit import encode_chat, load_tokenizer, measured, model_path
from tools.zoo.places import ModelError

ASKED = [("Hi!", 4, 0.0, None), ("What is a token?", 14, 0.0, None)]
WAYS = [(0.0, None), (2.0, 1), (2.0, 1), (2.0, 2)]  # temperature and seed
ASKED += [("Pick a colour.", 9, *way) for way in WAYS]


def main(
    prompt: Annotated[list[str] | None, typer.Option()] = None,
    model: str = "qwen3-tiny",
    max_tokens: int = 256,
    temperature: float = 0.0,
    seed: int | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    dtype: Literal["auto", "float32", "bfloat16"] = "float32",
) -> None:
    """Answer all --prompt in one batch, streaming a single one; or examples."""
    asked = [(p, max_tokens, temperature, seed) for p in prompt or []] or ASKED
    try:
        path = model_path(model)
        engine, tok = make_engine(path, device, dtype), load_tokenizer(path)
        prompts = [encode_chat(tok, text) for text, *_ in asked]
        reqs = make_reqs(engine, prompts, [how for _, *how in asked])
    except (ModelError, OSError, ValueError, RuntimeError) as error:
        raise SystemExit(str(error)) from None
    sizes, times, shown = [], [perf_counter()], ""
    for tokens in run(engine, reqs, load_eos_token_ids(str(path))):
        sizes, times = [*sizes, len(tokens)], [*times, perf_counter()]
        if len(reqs) == 1 and not (text := answer(tok, reqs[0])).endswith("�"):
            print(text.removeprefix(shown), end="", flush=True)
            shown = text
    print(answer(tok, reqs[0]).removeprefix(shown) if len(reqs) == 1 else "")
    table = zip(reqs, asked, strict=True) if len(reqs) > 1 else ()
    for req, (text, _, heat, s) in table:
        how = f"T={heat:g}, seed {s}" if heat else "greedy"
        print(f"{text:18}{how:14}{answer(tok, req)!r}")
    rate = sum(sizes[1:]) / (times[-1] - times[1] or 1)
    sums = " + ".join(f"{n} x {b}" for b, n in Counter(sizes[1:]).items())
    print("\nprefill ", " + ".join(str(len(ids)) for ids in prompts), "tokens:")
    print("        ", measured(1000 * (times[1] - times[0]), "ms"))
    print("decode  ", sums, "tokens:", measured(rate, "tokens/s"))


if __name__ == "__main__":
    typer.run(main)
