"""Model folders without weights: a shape to measure, and nothing to fetch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

_COMMON = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "initializer_range": 0.02,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def _shape(
    kind: str,
    layers: int,
    width: int,
    mlp: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    **more: Any,
) -> dict[str, Any]:
    """A config.json."""
    sizes = {
        "architectures": [f"{kind}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
    }
    return _COMMON | sizes | more


def _hybrid(
    kind: str,
    layers: int,
    width: int,
    mlp: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    value_heads: int,
    **more: Any,
) -> dict[str, Any]:
    """A config.json of Qwen3.5: every fourth layer attends."""
    rope = {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
    }
    sizes: dict[str, Any] = {
        "head_dim": 256,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"])
        * (layers // 4),
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "rope_parameters": rope,
    }
    shape = (layers, width, mlp, heads, kv_heads, vocabulary)
    return _shape(kind, *shape, **(sizes | more))


SHAPES = {
    "tiny": _shape(
        "Qwen3", 3, 128, 256, 4, 2, 512, model_type="qwen3", head_dim=64
    ),
    "smollm2-135m": _shape(
        "Llama",
        *(30, 576, 1536, 9, 3, 49152),
        model_type="llama",
        head_dim=64,
        rope_theta=100000.0,
        max_position_embeddings=8192,
    ),
    "qwen3-0.6b": _shape(
        "Qwen3",
        *(28, 1024, 3072, 16, 8, 151936),
        model_type="qwen3",
        head_dim=128,
    ),
    "qwen3-8b": _shape(
        "Qwen3",
        *(36, 4096, 12288, 32, 8, 151936),
        model_type="qwen3",
        head_dim=128,
        tie_word_embeddings=False,
    ),
    "qwen3-30b-a3b": _shape(
        "Qwen3Moe",
        *(48, 2048, 6144, 32, 4, 151936),
        model_type="qwen3_moe",
        head_dim=128,
        tie_word_embeddings=False,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
    ),
    "qwen3.5-0.8b": _hybrid(
        "Qwen3_5",
        *(24, 1024, 3584, 8, 2, 248320),
        16,
        model_type="qwen3_5_text",
    ),
    "qwen3.5-35b-a3b": _hybrid(
        "Qwen3_5Moe",
        *(40, 2048, 0, 16, 2, 248320),
        32,
        model_type="qwen3_5_moe_text",
        tie_word_embeddings=False,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
    ),
}
"""Configurations by name; sizes as the models of these names have them."""


@contextmanager
def shape_folder(name: str) -> Iterator[Path]:
    """A folder with the configuration of a shape and a tokenizer, for a while.

    Raises:
        ValueError: no shape has that name.
    """
    if name not in SHAPES:
        known = ", ".join(SHAPES)
        raise ValueError(f"no shape is called {name!r}; known: {known}")
    with TemporaryDirectory(prefix="shape-") as place:
        folder = Path(place)
        write_shape(folder, SHAPES[name])
        yield folder


def write_shape(folder: Path, config: dict[str, Any]) -> None:
    """Write config.json and a tokenizer with as many words as the vocabulary."""
    (folder / "config.json").write_text(json.dumps(config))
    words = [f" {word}" for word in _words(config["vocab_size"])]
    # As byte-level vocabularies have it: a space is written as this letter.
    vocab = {word.replace(" ", "Ġ"): i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="Ġa"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Its words and nothing else, so that a prompt has a known length.
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _words(count: int) -> list[str]:
    """So many different words of letters, the shortest first."""
    found: list[str] = []
    length = 1
    while len(found) < count:
        letters = product(ascii_lowercase, repeat=length)
        found += map("".join, letters)
        length += 1
    return found[:count]
