"""What the engine asks of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from minisgl.layers import BaseOP
from minisgl.models.config import ModelConfig


class BaseLLMModel(ABC, BaseOP):
    """A model that computes the batch of the current context."""

    @abstractmethod
    def __init__(self, config: ModelConfig) -> None: ...

    @abstractmethod
    def forward(self) -> torch.Tensor:
        """Logits [rows, vocab_size] of the running batch."""
