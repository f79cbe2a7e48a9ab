"""Qwen3-MoE: Qwen3 with experts in place of the MLP."""

from minisgl.layers import BaseOP
from minisgl.models.decoder import DecoderForCausalLM
from minisgl.models.utils import MoEMLP

__all__ = ["Qwen3MoeForCausalLM"]


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """The shared decoder with one switch on and another MLP."""

    has_qk_norm = True

    def make_mlp(self) -> BaseOP:
        return MoEMLP(self._config)
