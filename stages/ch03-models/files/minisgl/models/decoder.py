"""The decoder that Llama, Mistral, Qwen2 and Qwen3 share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from minisgl.core import get_global_ctx
from minisgl.layers import (
    BaseOP,
    OPList,
    ParallelLMHead,
    RMSNormFused,
    VocabParallelEmbedding,
)
from minisgl.models.base import BaseLLMModel
from minisgl.models.config import ModelConfig
from minisgl.models.utils import GatedMLP, RopeAttn


class DecoderLayer(BaseOP):
    """Pre-norm attention and MLP around one residual stream."""

    def __init__(self, config: ModelConfig, attn: BaseOP, mlp: BaseOP) -> None:
        self.self_attn = attn
        self.mlp = mlp
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNormFused(size, eps)
        self.post_attention_layernorm = RMSNormFused(size, eps)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x, residual [T, hidden] -> what the layer adds, and the stream."""
        x, residual = self.input_layernorm.forward(x, residual)
        x = self.self_attn.forward(x)
        x, residual = self.post_attention_layernorm.forward(x, residual)
        return self.mlp.forward(x), residual


class DecoderModel(BaseOP):
    """Embedding, layers, last norm."""

    def __init__(
        self, config: ModelConfig, make_layer: Callable[[int], DecoderLayer]
    ) -> None:
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size
        )
        self.layers = OPList([make_layer(i) for i in range(config.num_layers)])
        self.norm = RMSNormFused(config.hidden_size, config.rms_norm_eps)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """int [T] -> [T, hidden]."""
        x = self.embed_tokens.forward(input_ids)
        residual = None
        for layer in self.layers.op_list:
            x, residual = layer.forward(x, residual)
        return self.norm.forward(x, residual)[0]


class DecoderForCausalLM(BaseLLMModel):
    """A decoder with a language-model head; a family sets the switches."""

    has_attn_bias: ClassVar[bool] = False
    has_qk_norm: ClassVar[bool] = False

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self.model = DecoderModel(config, self.make_layer)
        self.lm_head = ParallelLMHead(
            config.vocab_size,
            config.hidden_size,
            tie_word_embeddings=config.tie_word_embeddings,
            tied_embedding=self.model.embed_tokens,
        )

    def make_layer(self, layer_id: int) -> DecoderLayer:
        """Layer `layer_id` of this family."""
        attn = RopeAttn(
            self._config,
            layer_id,
            has_attn_bias=self.has_attn_bias,
            has_qk_norm=self.has_qk_norm,
        )
        return DecoderLayer(self._config, attn, GatedMLP(self._config))

    def forward(self) -> torch.Tensor:
        x = self.model.forward(get_global_ctx().batch.input_ids)
        return self.lm_head.forward(x)
