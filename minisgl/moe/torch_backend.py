"""Experts in plain torch: one after another, each with its tokens."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F

from minisgl.moe.base import ACTIVATIONS, BaseMoeBackend
from minisgl.moe.fused import fused_topk


class TorchMoe(BaseMoeBackend):
    """The reference: runs wherever torch does.

    It reads on the host how many tokens each expert has, so on a GPU every
    layer waits for the one before it.
    """

    reads_on_host: ClassVar[bool] = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        gating_output: torch.Tensor,
        topk: int,
        renormalize: bool,
        activation: str = "silu",
        apply_router_weight_on_input: bool = False,
    ) -> torch.Tensor:
        weights, ids = fused_topk(
            hidden_states, gating_output, topk, renormalize
        )
        act, experts = ACTIVATIONS[activation], ids.flatten()
        order = experts.argsort(stable=True)
        rows, scale = order // topk, weights.flatten()[order].unsqueeze(1)
        counts = experts.bincount(minlength=len(w1)).tolist()
        out = torch.zeros_like(hidden_states, dtype=torch.float32)
        start = 0
        for expert, count in enumerate(counts):
            if count == 0:
                continue
            mine = slice(start, start := start + count)
            x = hidden_states[rows[mine]]
            if apply_router_weight_on_input:
                x = (x * scale[mine]).to(x.dtype)
            y = F.linear(act(F.linear(x, w1[expert])), w2[expert]).float()
            if not apply_router_weight_on_input:
                y *= scale[mine]
            out.index_add_(0, rows[mine], y)
        return out.to(hidden_states.dtype)
