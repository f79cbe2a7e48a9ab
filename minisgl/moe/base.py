"""The interface behind which the experts of a layer are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from minisgl.layers.activation import gelu_and_mul, silu_and_mul

ACTIVATIONS = {"silu": silu_and_mul, "gelu": gelu_and_mul}


class BaseMoeBackend(ABC):
    """Routes every token to its experts and sums up what they make of it.

    reads_on_host: whether it asks the device for numbers, which a CUDA graph
        cannot hold.
    """

    reads_on_host: ClassVar[bool] = False

    @abstractmethod
    def forward(
        self,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        gating_output: torch.Tensor,
        topk: int,
        renormalize: bool,
        activation: str,
        apply_router_weight_on_input: bool,
    ) -> torch.Tensor:
        """[T, H] -> [T, H].

        w1: [E, 2 F, H], gate and up of every expert; w2: [E, H, F], down.
        gating_output: [T, E], the router's logits.
        topk: experts a token. renormalize: their weights sum to 1.
        activation: of the gate, a key of ACTIVATIONS.
        apply_router_weight_on_input: weigh what goes into an expert, not what
            comes out.
        """
