"""One answer with fewer steps, and drafts that are drawn and judged."""

import sys
from pathlib import Path
from typing import Any, Literal

sys.path[:0] = [str(Path(__file__).resolve().parents[i]) for i in (2, 0)]

import torch
from watched import WatchedLLM

from minisgl.core import SamplingParams
from minisgl.engine.rejection import judge
from tools.stagekit import model_path, run

PROMPT = [*range(220, 240)]
PARAMS = SamplingParams(max_tokens=64, ignore_eos=True)
# The next of four tokens, as the model wants it and as it is guessed.
WANTED = torch.tensor([0.5, 0.3, 0.2, 0.0])
GUESSED = torch.tensor([0.2, 0.3, 0.1, 0.4])


def draw(n: int = 1_000_000) -> None:
    """Guess a token n times, and keep or replace it."""
    noise = torch.Generator().manual_seed(0)
    uniforms = torch.rand(n, generator=noise)
    drafts = torch.multinomial(GUESSED, n, True, generator=noise)
    rest = judge(WANTED.expand(n, 4), GUESSED.expand(n, 4), drafts, uniforms)
    drawn = torch.multinomial(rest, 1, generator=noise).squeeze(1)
    for name, tokens in {"guessed": drafts, "drawn": drawn}.items():
        often = (torch.bincount(tokens, minlength=4) / n).tolist()
        print(f"{name:9}", *(f"{share:.2f}" for share in often))
    print(f"kept      {float((drawn == drafts).float().mean()):.2f}")


def main(
    model: str = "qwen3-tiny", device: Literal["cpu", "cuda"] = "cpu"
) -> None:
    """Answer without drafts, with those of the text, and of a draft model."""
    path = str(model_path(model))
    settings: dict[str, Any] = {"device": device, "speculative_tokens": 6}
    settings["dtype"] = "float32" if device == "cpu" else "bfloat16"
    ways: dict[str, Any] = {"plain": {}, "ngram": {"speculative": "ngram"}}
    ways["draft"] = {"speculative": "draft", "speculative_draft_model": path}
    answers = []
    for name, way in ways.items():
        llm = WatchedLLM(path, **settings, **way)
        answers += llm.generate([PROMPT], PARAMS, progress=False)
        print(f"{name}  {llm.summary()}")
        for check in llm.checks[:2]:
            print("  guessed", *(f"{token:3}" for token in check.guessed))
            print("  chosen ", *(f"{token:3}" for token in check.chosen))
    equal = all(a["token_ids"] == answers[0]["token_ids"] for a in answers)
    print("equal answers:", "yes" if equal else "no", "\n")
    draw()


if __name__ == "__main__":
    run(main)
