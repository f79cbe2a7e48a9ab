"""All experts of a layer in a handful of launches, whatever the routing."""

from __future__ import annotations

import torch

from minisgl.kernel import fused_moe_kernel_triton, moe_sum_reduce_triton
from minisgl.kernel.moe_align import moe_align_block_size
from minisgl.moe.base import ACTIVATIONS, BaseMoeBackend


def fused_topk(
    hidden_states: torch.Tensor,
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token: (weights float32 [T, k], ids int32 [T, k]).

    hidden_states: [T, H]. gating_output: [T, E], of any dtype; from there on all
        is float32, since close experts change places when it is rounded.
    renormalize: the weights of a token sum to 1.
    """
    assert len(hidden_states) == len(gating_output), "one row of logits a token"
    probs = torch.softmax(gating_output, dim=-1, dtype=torch.float32)
    weights, ids = probs.topk(topk, dim=-1)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, ids.to(torch.int32)


def get_default_config(
    M: int, E: int, N: int, K: int, topk: int
) -> dict[str, int]:
    """Sizes of blocks for M tokens; see `fused_moe_kernel_triton`.

    E experts with a product [K] -> [N]. What counts is how many pairs an expert
    gets: blocks hold one expert's, and what they lack is computed for nothing.
    """
    if M * topk <= 16 * E:
        return {
            "BLOCK_SIZE_M": 16,
            "BLOCK_SIZE_N": 64,
            "BLOCK_SIZE_K": 128,
            "GROUP_SIZE_M": 1,
            "num_warps": 4,
            "num_stages": 4,
        }
    return {
        "BLOCK_SIZE_M": 64,
        "BLOCK_SIZE_N": 128,
        "BLOCK_SIZE_K": 64,
        "GROUP_SIZE_M": 8,
        "num_warps": 4,
        "num_stages": 4,
    }


def try_get_optimal_moe_config(
    w1_shape: tuple[int, ...], w2_shape: tuple[int, ...], top_k: int, M: int
) -> dict[str, int]:
    """The configuration of a layer's two products, by the shapes of its weights."""
    experts, hidden, _ = w2_shape
    return get_default_config(M, experts, w1_shape[1], hidden, top_k)


def fused_experts_impl(
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: str = "silu",
    apply_router_weight_on_input: bool = False,
) -> torch.Tensor:
    """The weighted sum of each token's experts: [T, H] -> [T, H].

    Shapes as in `BaseMoeBackend.forward` and `fused_topk`.
    """
    tokens, k = topk_ids.shape
    config = try_get_optimal_moe_config(w1.shape, w2.shape, k, tokens)
    if hidden_states.dtype == torch.float32:
        # Twice as wide: as many blocks in flight would not fit.
        config |= {"num_stages": 2}
    aligned = moe_align_block_size(topk_ids, config["BLOCK_SIZE_M"], len(w1))
    dtype, on_input = hidden_states.dtype, apply_router_weight_on_input
    routing = (topk_weights, topk_ids, *aligned)

    # Weighing before the activation is weighing what goes in: it is linear.
    wide = hidden_states.new_empty(tokens * k, w1.shape[1])
    fused_moe_kernel_triton(
        hidden_states, w1, wide, *routing, on_input, k, config, dtype
    )
    narrow = ACTIVATIONS[activation](wide)
    parts = hidden_states.new_empty(tokens, k, w2.shape[1])
    fused_moe_kernel_triton(
        narrow, w2, parts, *routing, not on_input, 1, config, dtype
    )
    out = torch.empty_like(hidden_states)
    moe_sum_reduce_triton(parts, out)
    return out


class FusedMoe(BaseMoeBackend):
    """Two grouped products in Triton, with the activation in between."""

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
        return fused_experts_impl(
            hidden_states,
            w1,
            w2,
            weights,
            ids,
            activation,
            apply_router_weight_on_input,
        )
