"""The engine: a model, its memory, and one step at a time."""

from minisgl.engine.config import EngineConfig
from minisgl.engine.engine import Engine, ForwardOutput
from minisgl.engine.sample import FAILED_TOKEN, BatchSamplingArgs, Sampler

__all__ = [
    "FAILED_TOKEN",
    "BatchSamplingArgs",
    "Engine",
    "EngineConfig",
    "ForwardOutput",
    "Sampler",
]
