"""Mistral; its window is met by keeping sequences inside it."""

from minisgl.models.decoder import DecoderForCausalLM

__all__ = ["MistralForCausalLM"]


class MistralForCausalLM(DecoderForCausalLM):
    """The shared decoder as it is."""
