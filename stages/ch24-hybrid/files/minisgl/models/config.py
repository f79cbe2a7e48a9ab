"""The facts about an architecture, whichever form its config.json has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig

from minisgl.models.linear_config import LinearConfig

if TYPE_CHECKING:
    import torch

# Switches that would change the result if they were passed over.
_UNSUPPORTED = (
    "quantization_config",
    "attention_bias",
    "mlp_bias",
    "mlp_only_layers",
)
_EXPERT_SIZES = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
# What every decoder here states, and GPT-2 for one does not.
_NEEDED = ("rms_norm_eps", "hidden_act")
_MLP_SIZES = ("intermediate_size", "moe_intermediate_size")


@dataclass(frozen=True)
class RotaryConfig:
    """Arguments of `layers.get_rope`."""

    head_dim: int
    rotary_dim: int
    max_position: int
    base: float
    scaling: dict[str, Any] | None = None


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and switches of a decoder-only model.

    The five that tell of experts are 0 and False in a model without any.

    shared_expert_size: the middle of an MLP that every token runs through
        beside its experts; 0 without one.
    linear: which layers keep a state in place of keys and values; None if all
        attend.
    """

    num_layers: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    rms_norm_eps: float
    rotary_config: RotaryConfig
    hidden_act: str
    tie_word_embeddings: bool
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    model_type: str
    architectures: list[str]
    shared_expert_size: int = 0
    linear: LinearConfig | None = None

    @property
    def is_moe(self) -> bool:
        """Whether experts stand in place of the MLPs."""
        return self.num_experts > 0

    @property
    def num_kv_layers(self) -> int:
        """Layers that keep keys and values."""
        linear = self.linear.num_layers if self.linear is not None else 0
        return self.num_layers - linear

    def kv_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Of keys and values in their pool, if all else is in `dtype`."""
        return dtype

    @classmethod
    def from_hf(cls, config: PretrainedConfig) -> ModelConfig:
        """Translate a transformers configuration.

        Raises:
            ValueError: something the model does that this engine does not.
        """
        _refuse(config)
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // heads
        return cls(
            num_layers=config.num_hidden_layers,
            num_qo_heads=heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=head_dim,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            intermediate_size=getattr(config, "intermediate_size", 0),
            rms_norm_eps=config.rms_norm_eps,
            rotary_config=_rotary_config(config, head_dim),
            hidden_act=config.hidden_act,
            tie_word_embeddings=config.tie_word_embeddings,
            **_experts(config),
            model_type=config.model_type,
            architectures=list(config.architectures or []),
            linear=LinearConfig.from_hf(config),
        )


def _refuse(config: PretrainedConfig) -> None:
    """Raise ValueError for what would otherwise fail late, or never."""
    if not any(hasattr(config, key) for key in _MLP_SIZES):
        raise ValueError(
            f"model type {config.model_type!r} is not supported: "
            f"its configuration has no {_MLP_SIZES[0]}"
        )
    for key in _NEEDED:
        if not hasattr(config, key):
            raise ValueError(
                f"model type {config.model_type!r} is not supported: "
                f"its configuration has no {key}"
            )
    for key in _UNSUPPORTED:
        if getattr(config, key, None):
            raise ValueError(f"{key} in config.json is not supported")
    if getattr(config, "decoder_sparse_step", 1) != 1:
        raise ValueError("decoder_sparse_step other than 1 is not supported")


def _experts(config: PretrainedConfig) -> dict[str, Any]:
    if not getattr(config, "num_experts", 0):
        none = dict.fromkeys(_EXPERT_SIZES, 0)
        return {**none, "norm_topk_prob": False}
    sizes = {key: getattr(config, key) for key in _EXPERT_SIZES}
    count, chosen = sizes["num_experts"], sizes["num_experts_per_tok"]
    if not 1 <= chosen <= count:
        raise ValueError(
            f"num_experts_per_tok is {chosen} but there are {count} experts"
        )
    shared = getattr(config, "shared_expert_intermediate_size", 0)
    # Who states no norm_topk_prob has no other way.
    renormalize = getattr(config, "norm_topk_prob", True)
    return {
        **sizes,
        "norm_topk_prob": renormalize,
        "shared_expert_size": shared,
    }


def _rotary_config(config: PretrainedConfig, head_dim: int) -> RotaryConfig:
    scaling = _rope_parameters(config)
    base = scaling.pop("rope_theta", None)
    if base is None:
        raise ValueError("config.json states no rope_theta")
    partial = scaling.pop("partial_rotary_factor", 1.0)
    # Layers share tables by these settings, so that they must be hashable.
    hashable = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in scaling.items()
    }
    return RotaryConfig(
        head_dim=head_dim,
        rotary_dim=int(head_dim * partial),
        max_position=_context_length(config),
        base=float(base),
        scaling=hashable,
    )


def _rope_parameters(config: PretrainedConfig) -> dict[str, Any]:
    """One dict, as transformers v5 has it; v4 had a number and a dict or null.

    Where both forms occur v5's counts.
    """
    found = getattr(config, "rope_parameters", None)
    found = found or getattr(config, "rope_scaling", None)
    stated = getattr(config, "rope_theta", None)
    return {"rope_theta": stated} | dict(found or {})


def _context_length(config: PretrainedConfig) -> int:
    """Longest sequence; within a sliding window, windowed attention is full."""
    longest = int(config.max_position_embeddings)
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "use_sliding_window", True):
        return min(longest, int(window))
    return longest
