"""What a tiny checkpoint is made from, and the configs that follow from it."""

from dataclasses import dataclass
from typing import Any

from tools.zoo.chat import VOCAB_SIZE, Style

COMMON = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "use_cache": True,
    "vocab_size": VOCAB_SIZE,
}


@dataclass(frozen=True)
class Recipe:
    """How a tiny checkpoint is made.

    Attributes:
        config: what config.json adds to COMMON, or changes in it.
        shards: number of safetensors files; from two on there is an index.
    """

    about: str
    seed: int
    style: Style
    config: dict[str, Any]
    shards: int = 1

    def config_json(self) -> dict[str, Any]:
        """Content of config.json."""
        ends = self.style.ends
        bos = self.style.bos and self.style.id_of(self.style.bos)
        tokens = {
            "bos_token_id": bos,
            "eos_token_id": self.style.id_of(ends[0]),
        }
        return {**COMMON, **tokens, **self.config}

    def generation_json(self) -> dict[str, Any]:
        """Content of generation_config.json; it may name more end tokens."""
        ids = [self.style.id_of(token) for token in self.style.ends]
        bos = self.style.bos and self.style.id_of(self.style.bos)
        return {
            "bos_token_id": bos,
            "do_sample": False,
            "eos_token_id": ids if len(ids) > 1 else ids[0],
            "pad_token_id": ids[-1],
        }
