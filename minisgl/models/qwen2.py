"""Qwen2 and 2.5: q, k and v have biases."""

from minisgl.models.decoder import DecoderForCausalLM

__all__ = ["Qwen2ForCausalLM"]


class Qwen2ForCausalLM(DecoderForCausalLM):
    """The shared decoder with one switch on."""

    has_attn_bias = True
