"""OLMo 2: norms behind attention and MLP, and q and k normalised as a whole."""

from __future__ import annotations

import torch

from minisgl.layers import BaseOP, RMSNorm, RMSNormFused
from minisgl.models.config import ModelConfig
from minisgl.models.decoder import DecoderForCausalLM, DecoderLayer
from minisgl.models.utils import GatedMLP, RopeAttn

__all__ = ["Olmo2ForCausalLM"]


class Olmo2Attn(RopeAttn):
    """Normalises all heads of q together, and all heads of k, before RoPE."""

    def __init__(self, config: ModelConfig, layer_id: int) -> None:
        super().__init__(config, layer_id)
        q_size = config.num_qo_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        self.q_norm = RMSNorm(q_size, config.rms_norm_eps)
        self.k_norm = RMSNorm(kv_size, config.rms_norm_eps)
        self._sizes = [q_size, kv_size, kv_size]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        q, k, v = self.qkv_proj.forward(x).split(self._sizes, dim=-1)
        q, k = self.q_norm.forward(q), self.k_norm.forward(k)
        qkv = torch.cat([q, k, v], dim=-1)
        return self.o_proj.forward(self.attn.forward(qkv))


class Olmo2Layer(DecoderLayer):
    """Attention and MLP read the stream as it is; what they add is normalised."""

    def __init__(self, config: ModelConfig, attn: BaseOP, mlp: BaseOP) -> None:
        super().__init__(config, attn, mlp)
        del self.input_layernorm
        self.post_feedforward_layernorm = RMSNormFused(
            config.hidden_size, config.rms_norm_eps
        )

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x, residual [T, hidden] -> what the layer adds, and the stream."""
        stream = x if residual is None else x + residual
        added = self.self_attn.forward(stream)
        stream = stream + self.post_attention_layernorm.forward(added)[0]
        added = self.mlp.forward(stream)
        return self.post_feedforward_layernorm.forward(added)[0], stream


class Olmo2ForCausalLM(DecoderForCausalLM):
    """The shared decoder with layers of its own."""

    def make_layer(self, layer_id: int) -> DecoderLayer:
        attn = Olmo2Attn(self._config, layer_id)
        return Olmo2Layer(self._config, attn, GatedMLP(self._config))
