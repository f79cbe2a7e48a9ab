"""Qwen3: q and k are normalised, head by head."""

from minisgl.models.decoder import DecoderForCausalLM

__all__ = ["Qwen3ForCausalLM"]


class Qwen3ForCausalLM(DecoderForCausalLM):
    """The shared decoder with one switch on."""

    has_qk_norm = True
