"""Experts dealt out to ranks, whole: a rank computes those that it has."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minisgl.moe.base import ACTIVATIONS, BaseMoeBackend
from minisgl.moe.fused import fused_topk


def experts_of(rank: int, size: int, num_experts: int) -> tuple[int, int]:
    """(first, last): a rank has the experts first ... last - 1.

    In the order of ranks, as evenly as possible; where it does not come out
    even the first ranks have one more.
    """
    each, more = divmod(num_experts, size)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


class WholeExperts(BaseMoeBackend):
    """A rank's part of the result; the sum over all ranks is the result.

    first: the rank's first expert. w1 and w2 hold it and those that follow.
    """

    def __init__(self, first: int) -> None:
        self._first = first

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
        """As `BaseMoeBackend.forward`, but w1 and w2 hold some experts only.

        gating_output: [T, E], the logits of all experts, the same on every
            rank. A token none of whose experts are here gets zeros. Sums are
            kept in float32 and rounded once.
        """
        # All ranks route alike: the weights of a token sum to 1 over all of
        # its experts, wherever these are.
        weights, ids = fused_topk(
            hidden_states, gating_output, topk, renormalize
        )
        act = ACTIVATIONS[activation]
        out = torch.zeros_like(hidden_states, dtype=torch.float32)
        for place in range(len(w1)):
            rows, choice = (ids == self._first + place).nonzero(as_tuple=True)
            if len(rows) == 0:
                continue
            scale = weights[rows, choice].unsqueeze(1)
            x = hidden_states[rows]
            if apply_router_weight_on_input:
                x = (x * scale).to(x.dtype)
            y = F.linear(act(F.linear(x, w1[place])), w2[place]).float()
            if not apply_router_weight_on_input:
                y = y * scale
            out.index_add_(0, rows, y)
        return out.to(hidden_states.dtype)


def imbalance(topk_ids: torch.Tensor, size: int, num_experts: int) -> float:
    """How much longer the busiest rank works than one would if all were equal.

    topk_ids: int [T, k] with T > 0. Work is counted in (token, choice) pairs:
    1.0 is a fair share, `size` is all of it on one rank.
    """
    counts = topk_ids.flatten().bincount(minlength=num_experts)
    spans = [experts_of(rank, size, num_experts) for rank in range(size)]
    most = max(int(counts[first:last].sum()) for first, last in spans)
    return most * size / topk_ids.numel()
