"""Llama 2 and 3 and what copies their form, SmolLM2 for one."""

from minisgl.models.decoder import DecoderForCausalLM

__all__ = ["LlamaForCausalLM"]


class LlamaForCausalLM(DecoderForCausalLM):
    """The shared decoder as it is."""
