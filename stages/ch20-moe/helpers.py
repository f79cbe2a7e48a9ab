"""What main.py shows, computed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

import torch

from minisgl.core import SamplingParams
from minisgl.kernel.moe_align import moe_align_block_size
from minisgl.llm import LLM
from minisgl.models import ModelConfig
from minisgl.moe import create_moe_backend
from minisgl.moe.fused import fused_topk
from tools.stagekit import encode_chat, load_tokenizer, measured

BLOCK = 16


def blocks_of(ids: torch.Tensor, experts: int) -> str:
    """How many blocks some choices take, and how full these are."""
    places = int(moe_align_block_size(ids, BLOCK, experts)[2])
    return f"{places // BLOCK:4}, {ids.numel() / places:4.0%} filled"


class Seen:
    """Inside, notes what the layers of experts choose."""

    def __init__(self, llm: LLM, config: ModelConfig) -> None:
        self._backend = llm.engine.ctx.moe_backend
        self._layers, self._experts = config.num_layers, config.num_experts
        self._ids: list[torch.Tensor] = []

    def __enter__(self) -> Self:
        forward = self._backend.forward

        def noted(x: torch.Tensor, *args: Any) -> torch.Tensor:
            _, _, gates, topk, norm, *_ = args
            self._ids.append(fused_topk(x, gates, topk, norm)[1])
            return forward(x, *args)

        self._backend.forward = noted  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        del self._backend.forward

    def prefill(self) -> list[tuple[list[int], str]]:
        """By layer: how many tokens each expert gets, and their blocks."""
        return [
            (
                ids.flatten().bincount(minlength=self._experts).tolist(),
                blocks_of(ids, self._experts),
            )
            for ids in self._ids[: self._layers]
        ]


def shares(model: Any, config: ModelConfig) -> str:
    """How much of the weights are experts, and how much a token needs."""
    sizes = {k: w.numel() for k, w in model.state_dict().items()}
    total = sum(sizes.values())
    experts = sum(n for name, n in sizes.items() if ".experts." in name)
    used = experts * config.num_experts_per_tok // config.num_experts
    return (
        f"{experts / total:.0%} of {total:,} weights; a token uses "
        f"{(total - experts + used) / total:.0%} of all"
    )


def renormalize(model: Any, on: bool) -> None:
    """Make all layers of experts believe norm_topk_prob."""
    for layer in model.model.layers.op_list:
        layer.mlp.experts._renormalize = on


def question_ids(path: Path) -> list[list[int]]:
    """Three questions of uneven length."""
    tokenizer = load_tokenizer(path)
    asked = ["Hi!", "What is an expert?", "Who decides which one is asked?"]
    return [encode_chat(tokenizer, text) for text in asked]


def answers_of(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    """12 greedy tokens each, all prompts in one batch."""
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    answers = llm.generate(prompts, params, progress=False)
    return [answer["token_ids"] for answer in answers]


def crowd(tokens: int, device: str) -> str:
    """A layer with random weights and so many random tokens."""
    experts, topk, hidden, middle = 128, 8, 256, 96
    rng = torch.Generator().manual_seed(tokens)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=rng).to(device) / 16

    x, gates = draw(tokens, hidden), draw(tokens, experts)
    weights = draw(experts, 2 * middle, hidden), draw(experts, hidden, middle)
    ids = fused_topk(x, gates, topk, True)[1]
    filled = ids.numel() / int(moe_align_block_size(ids, BLOCK, experts)[2])
    backend = create_moe_backend("auto", torch.device(device))
    rounds = []
    for _ in range(20):
        start = time.perf_counter()
        out = backend.forward(x, *weights, gates, topk, True, "silu", False)
        out.sum().item()  # waits for a GPU
        rounds.append(time.perf_counter() - start)
    spent = measured(1000 * min(rounds), "ms")
    return f"{len(ids.unique()):14}{filled:8.0%}  {spent}"
