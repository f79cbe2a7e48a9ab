"""The halves of a decoder layer: attention with RoPE, and an MLP or experts."""

from __future__ import annotations

import torch

from minisgl.layers import (
    AttentionLayer,
    BaseOP,
    LinearColParallelMerged,
    LinearOProj,
    LinearQKVMerged,
    LinearReplicated,
    LinearRowParallel,
    MoELayer,
    RMSNorm,
    gelu_and_mul,
    silu_and_mul,
)
from minisgl.models.config import ModelConfig

__all__ = ["GatedMLP", "MoEMLP", "RopeAttn"]

_ACTIVATIONS = {"silu": silu_and_mul, "gelu": gelu_and_mul}


def _unknown_act(config: ModelConfig) -> str:
    known = ", ".join(_ACTIVATIONS)
    return f"hidden_act {config.hidden_act!r} is not supported; known: {known}"


class GatedMLP(BaseOP):
    """down(act(gate(x)) * up(x)), gate and up in one product."""

    def __init__(self, config: ModelConfig) -> None:
        if config.hidden_act not in _ACTIVATIONS:
            raise ValueError(_unknown_act(config))
        hidden, middle = config.hidden_size, config.intermediate_size
        self.gate_up_proj = LinearColParallelMerged(hidden, [middle] * 2, False)
        self.down_proj = LinearRowParallel(middle, hidden, has_bias=False)
        self._act = _ACTIVATIONS[config.hidden_act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down_proj.forward(self._act(self.gate_up_proj.forward(x)))


class MoEMLP(BaseOP):
    """A router and the experts it chooses from."""

    def __init__(self, config: ModelConfig) -> None:
        if config.hidden_act not in _ACTIVATIONS:
            raise ValueError(_unknown_act(config))
        hidden, experts = config.hidden_size, config.num_experts
        self.gate = LinearReplicated(hidden, experts, has_bias=False)
        self.experts = MoELayer(
            experts,
            config.num_experts_per_tok,
            hidden,
            config.moe_intermediate_size,
            renormalize=config.norm_topk_prob,
            activation=config.hidden_act,
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        logits = self.gate.forward(hidden_states)
        return self.experts.forward(hidden_states, logits)


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
