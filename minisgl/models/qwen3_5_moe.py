"""Qwen3.5-MoE: Qwen3.5 with experts, and an MLP that all tokens share."""

from __future__ import annotations

from dataclasses import replace

import torch

from minisgl.layers import BaseOP, LinearReplicated
from minisgl.models.config import ModelConfig
from minisgl.models.qwen3_5 import Qwen3_5ForCausalLM
from minisgl.models.utils import GatedMLP, MoEMLP

__all__ = ["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"]


class SharedMoEMLP(MoEMLP):
    """Experts by choice, plus one for all, which a gate weighs."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        shared = replace(config, intermediate_size=config.shared_expert_size)
        self.shared_expert = GatedMLP(shared)
        self.shared_expert_gate = LinearReplicated(config.hidden_size, 1, False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gate = self.shared_expert_gate.forward(hidden_states).sigmoid()
        shared = gate * self.shared_expert.forward(hidden_states)
        return super().forward(hidden_states) + shared


class Qwen3_5MoeForCausalLM(Qwen3_5ForCausalLM):
    """Qwen3.5 with another MLP."""

    def make_mlp(self) -> BaseOP:
        return SharedMoEMLP(self._config)


class Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeForCausalLM):
    """The part of the model that reads and writes text."""
