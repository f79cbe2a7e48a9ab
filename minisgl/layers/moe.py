"""A layer of experts: their weights, and whom to ask to compute them."""

from __future__ import annotations

import torch

from minisgl.core import get_global_ctx
from minisgl.distributed import DistributedCommunicator, get_tp_info
from minisgl.layers.base import BaseOP
from minisgl.utils import div_even


class MoELayer(BaseOP):
    """Experts that are gated MLPs, stacked.

    Every rank has a part of the middle of all experts, so that the sum over
    the ranks is the result. What is below is the rank's own F.

    gate_up_proj: [num_experts, 2 F, hidden_size]; down_proj: [num_experts,
        hidden_size, F].
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        renormalize: bool = True,
        activation: str = "silu",
        apply_router_weight_on_input: bool = False,
    ) -> None:
        middle = div_even(intermediate_size, get_tp_info().size)
        self.gate_up_proj = torch.empty(num_experts, 2 * middle, hidden_size)
        self.down_proj = torch.empty(num_experts, hidden_size, middle)
        self._top_k, self._renormalize = top_k, renormalize
        self._activation = activation
        self._on_input = apply_router_weight_on_input
        self._comm = DistributedCommunicator()

    def forward(
        self, hidden_states: torch.Tensor, router_logits: torch.Tensor
    ) -> torch.Tensor:
        """[T, hidden] and [T, num_experts] -> [T, hidden]."""
        out = get_global_ctx().moe_backend.forward(
            hidden_states,
            self.gate_up_proj,
            self.down_proj,
            router_logits,
            self._top_k,
            self._renormalize,
            self._activation,
            self._on_input,
        )
        return self._comm.all_reduce(out)
