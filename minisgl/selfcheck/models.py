"""Small random models, and what transformers answers with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
)

from minisgl.utils import init_logger

logger = init_logger(__name__)

Ids = list[int]

_SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 64, "rope_parameters": _ROPE},
    "qwen2": {"rope_parameters": _ROPE},
    "llama": {"head_dim": 128, "rope_parameters": _LLAMA3},
    "qwen3_moe": {
        "head_dim": 64,
        "rope_parameters": _ROPE,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
    },
}
"""What each model's configuration adds; by its `model_type`."""


def find_model(kind: str, models: Path) -> Path:
    """The folder of that kind in `models`, made if it is not there."""
    folder = models / kind
    if not (folder / "config.json").is_file():
        make_model(kind, folder)
    return folder


def make_model(kind: str, folder: Path) -> Path:
    """Write a seeded model of that kind, without a tokenizer, into `folder`."""
    changes = {"tie_word_embeddings": False, "dtype": "float32"}
    config = AutoConfig.for_model(kind, **_SIZES, **changes, **KINDS[kind])
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(_draw(name, weight))
    config.architectures = [type(model).__name__]
    model.save_pretrained(folder)
    return folder


def _draw(name: str, like: torch.Tensor) -> torch.Tensor:
    """Of a spread with which greedy text wanders and does not repeat itself."""
    noise = torch.randn(like.shape)
    if "norm" in name:
        return 1.0 + 0.25 * noise
    if "embed_tokens" in name or name.endswith("bias"):
        return 0.5 * noise
    if ".experts." in name:
        # Much alike: close choices of a router, which rounding decides, must
        # not change everything.
        noise = torch.randn(like.shape[1:]) + 0.1 * noise
    into_stream = "o_proj" in name or "down_proj" in name
    gain = 2.0 if into_stream else 1.5
    return noise * (gain / math.sqrt(like.shape[-1]))


@dataclass(frozen=True)
class Reference:
    """Greedy ids of transformers; how clear each choice was.

    gaps: between the two best logits, in standard deviations of the logits.
    """

    ids: Ids
    gaps: list[float]


def transformers_answers(
    folder: Path,
    prompts: Sequence[Ids],
    tokens: int,
    device: torch.device,
    dtype: torch.dtype,
) -> list[Reference]:
    """The first `tokens` greedy ids for each prompt, end tokens ignored."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    model = model.to(device).eval()
    if hasattr(model.config, "num_experts"):
        # One expert after the other: the rest is not for every dtype.
        model.set_experts_implementation("eager")
    model.generation_config = GenerationConfig()
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=device)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
        logits = torch.cat(out.logits).float()
        best = logits.topk(2).values
        gaps = (best[:, 0] - best[:, 1]) / logits.std(-1)
        answer = out.sequences[0, len(prompt) :].tolist()
        found.append(Reference(answer, gaps.tolist()))
    return found
