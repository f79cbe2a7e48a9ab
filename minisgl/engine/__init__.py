"""The engine: a model, its memory, and one step at a time.

Whoever only reads its settings does not load torch.
"""

from typing import TYPE_CHECKING

from minisgl.engine.config import EngineConfig
from minisgl.utils.lazy import lazy_names

if TYPE_CHECKING:
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

__getattr__ = lazy_names(
    __name__,
    {
        "engine": ["Engine", "ForwardOutput"],
        "sample": ["FAILED_TOKEN", "BatchSamplingArgs", "Sampler"],
    },
)
