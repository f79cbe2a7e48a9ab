"""Models: what a checkpoint's configuration says, built from operators."""

from minisgl.models.base import BaseLLMModel
from minisgl.models.config import ModelConfig, RotaryConfig
from minisgl.models.register import get_model_class
from minisgl.models.weight import load_model_weight, load_weight

__all__ = [
    "BaseLLMModel",
    "ModelConfig",
    "RotaryConfig",
    "create_model",
    "load_model_weight",
    "load_weight",
]


def create_model(model_config: ModelConfig) -> BaseLLMModel:
    """The model of the first architecture the configuration names.

    Make it on the meta device: the weights come from `load_weight`.

    Raises:
        ValueError: an architecture that is not known.
    """
    name = next(iter(model_config.architectures), "")
    model_class = get_model_class(name, model_config)
    return model_class(model_config)
