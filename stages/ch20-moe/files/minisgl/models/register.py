"""Which class stands for which architecture name."""

from __future__ import annotations

from importlib import import_module

from minisgl.models.base import BaseLLMModel
from minisgl.models.config import ModelConfig

__all__ = ["get_model_class"]

_MODELS = {
    "LlamaForCausalLM": ".llama",
    "MistralForCausalLM": ".mistral",
    "Qwen2ForCausalLM": ".qwen2",
    "Qwen3ForCausalLM": ".qwen3",
    "Qwen3MoeForCausalLM": ".qwen3_moe",
}


def get_model_class(
    model_architecture: str, model_config: ModelConfig
) -> type[BaseLLMModel]:
    """The class of that name, imported when it is asked for.

    Raises:
        ValueError: the architecture is not supported; the message lists those
            that are.
    """
    if model_architecture not in _MODELS:
        raise ValueError(
            f"model architecture {model_architecture!r} "
            f"({model_config.model_type}) is not supported; "
            f"supported: {', '.join(_MODELS)}"
        )
    module = import_module(_MODELS[model_architecture], __package__)
    found: type[BaseLLMModel] = getattr(module, model_architecture)
    return found
