"""Top-k sampling for step 0: draw among the k likeliest tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from engine import Cache, Engine


def choose(
    logits: Tensor, k: int, temperature: float, rng: torch.Generator
) -> int:
    """Draw one of the k likeliest ids of logits [V].

    With temperature 0 it is the likeliest one. Otherwise the logits are divided
    by the temperature, however small, and an id is drawn by the softmax over
    the k that are left; k may exceed V. Only `rng` decides.
    """
    if temperature == 0:
        return int(logits.argmax())
    top = logits.float().topk(min(k, len(logits)))
    # The likeliest becomes 0, so that no quotient overflows upwards.
    scores = (top.values - top.values[0]) / temperature
    place = torch.multinomial(scores.softmax(-1), 1, generator=rng)
    return int(top.indices[place])


def generate(
    engine: Engine,
    tokens: list[int],
    max_tokens: int,
    k: int,
    temperature: float,
    seed: int,
) -> Iterator[int]:
    """As `Engine.generate`, but each token is drawn by `choose`.

    All draws of an answer come from one generator with that seed.
    """
    cache: Cache = {}
    rng = torch.Generator().manual_seed(seed)
    with torch.inference_mode():
        for _ in range(max_tokens):
            logits = engine.forward(tokens, cache).cpu()
            tokens = [choose(logits, k, temperature, rng)]
            yield tokens[0]
            if tokens[0] in engine.config["eos"]:
                return
