"""The two halves of a decoder layer: attention with RoPE, and a gated MLP."""

from __future__ import annotations

import torch

from minisgl.layers import (
    AttentionLayer,
    BaseOP,
    LinearColParallelMerged,
    LinearOProj,
    LinearQKVMerged,
    LinearRowParallel,
    RMSNorm,
    gelu_and_mul,
    silu_and_mul,
)
from minisgl.models.config import ModelConfig

__all__ = ["GatedMLP", "RopeAttn"]

_ACTIVATIONS = {"silu": silu_and_mul, "gelu": gelu_and_mul}


class GatedMLP(BaseOP):
    """down(act(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, config: ModelConfig) -> None:
        if config.hidden_act not in _ACTIVATIONS:
            known = ", ".join(_ACTIVATIONS)
            raise ValueError(
                f"hidden_act {config.hidden_act!r} is not supported; "
                f"known: {known}"
            )
        hidden, middle = config.hidden_size, config.intermediate_size
        self.gate_up_proj = LinearColParallelMerged(hidden, [middle] * 2, False)
        self.down_proj = LinearRowParallel(middle, hidden, has_bias=False)
        self._act = _ACTIVATIONS[config.hidden_act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down_proj.forward(self._act(self.gate_up_proj.forward(x)))


class RopeAttn(BaseOP):
    """Project to q, k and v, attend, project back."""

    def __init__(
        self,
        config: ModelConfig,
        layer_id: int,
        *,
        has_attn_bias: bool = False,
        has_qk_norm: bool = False,
    ) -> None:
        head_dim = config.head_dim
        heads, kv_heads = config.num_qo_heads, config.num_kv_heads
        self.qkv_proj = LinearQKVMerged(
            config.hidden_size, head_dim, heads, kv_heads, has_attn_bias
        )
        if has_qk_norm:
            self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.attn = AttentionLayer(
            layer_id,
            heads,
            kv_heads,
            head_dim,
            config.rotary_config,
            q_norm=self.q_norm if has_qk_norm else None,
            k_norm=self.k_norm if has_qk_norm else None,
        )
        self.o_proj = LinearOProj(heads * head_dim, config.hidden_size, False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.o_proj.forward(self.attn.forward(self.qkv_proj.forward(x)))
