"""Qwen3.5: three layers with a state, then one that attends, and so on."""

from __future__ import annotations

import torch

from minisgl.core import get_global_ctx
from minisgl.layers import (
    AttentionLayer,
    BaseOP,
    LinearOProj,
    LinearQKVMerged,
)
from minisgl.layers.centered_norm import CenteredNorm, CenteredNormFused
from minisgl.layers.gated_delta import GatedDeltaNet
from minisgl.models.config import ModelConfig
from minisgl.models.decoder import (
    DecoderForCausalLM,
    DecoderLayer,
)

__all__ = ["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"]


class GatedAttn(BaseOP):
    """Attention whose output is gated: each query head has a gate beside it."""

    def __init__(self, config: ModelConfig, layer_id: int) -> None:
        dim, eps = config.head_dim, config.rms_norm_eps
        heads, kv_heads = config.num_qo_heads, config.num_kv_heads
        self.qkv_proj = LinearQKVMerged(
            config.hidden_size, dim, 2 * heads, kv_heads, has_bias=False
        )
        self.q_norm = CenteredNorm(dim, eps)
        self.k_norm = CenteredNorm(dim, eps)
        self.attn = AttentionLayer(
            layer_id, heads, kv_heads, dim, config.rotary_config
        )
        self.o_proj = LinearOProj(heads * dim, config.hidden_size, False)
        self._dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        q_size, k_size, v_size = self.attn.qkv_sizes
        sizes = [2 * q_size, k_size, v_size]
        both, k, v = self.qkv_proj.forward(x).split(sizes, dim=-1)
        q, gate = both.unflatten(-1, (-1, 2, self._dim)).unbind(-2)
        # The attention layer itself knows norms of the other kind only.
        heads = self._normed(q, self.q_norm), self._normed(k, self.k_norm)
        out = self.attn.forward(torch.cat([*heads, v], dim=-1))
        return self.o_proj.forward(out * gate.flatten(1).sigmoid())

    def _normed(self, heads: torch.Tensor, norm: CenteredNorm) -> torch.Tensor:
        """Each head by itself: [T, ...] -> [T, heads * head_dim]."""
        rows = heads.reshape(-1, self._dim)
        return norm.forward(rows).view(len(heads), -1)


class HybridLayer(DecoderLayer):
    """A decoder layer of either kind; checkpoints name the two differently."""

    def __init__(
        self, config: ModelConfig, mixer: BaseOP, name: str, mlp: BaseOP
    ) -> None:
        size, eps = config.hidden_size, config.rms_norm_eps
        setattr(self, name, mixer)
        self.mlp = mlp
        self.input_layernorm = CenteredNormFused(size, eps)
        self.post_attention_layernorm = CenteredNormFused(size, eps)
        self._mixer = mixer

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self.input_layernorm.forward(x, residual)
        x = self._mixer.forward(x)
        x, residual = self.post_attention_layernorm.forward(x, residual)
        return self.mlp.forward(x), residual


class Qwen3_5ForCausalLM(DecoderForCausalLM):
    """The shared decoder with layers of two kinds and norms of its own."""

    def __init__(self, config: ModelConfig) -> None:
        if config.linear is None:
            raise ValueError("Qwen3.5 needs layers of type linear_attention")
        super().__init__(config)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.model.norm = CenteredNormFused(size, eps)

    def make_layer(self, layer_id: int) -> DecoderLayer:
        config, linear = self._config, self._config.linear
        assert linear is not None
        number = linear.layer(layer_id)
        if linear.is_linear[layer_id]:
            size, eps = config.hidden_size, config.rms_norm_eps
            mixer: BaseOP = GatedDeltaNet(linear, size, eps, number)
            name = "linear_attn"
        else:
            mixer, name = GatedAttn(config, number), "self_attn"
        return HybridLayer(config, mixer, name, self.make_mlp())


class Qwen3_5ForConditionalGeneration(Qwen3_5ForCausalLM):
    """The part of the model that reads and writes text."""
