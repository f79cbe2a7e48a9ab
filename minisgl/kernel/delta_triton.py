"""The Triton kernels of the gated delta rule, launched on torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from minisgl.attention.segments import Wave
    from minisgl.kernel.delta import DeltaWeights

_CHANNELS = 256
"""Channels of the convolution that a program has in a decode step."""


def delta_decode_triton(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    weights: DeltaWeights,
    conv: torch.Tensor,
    recurrent: torch.Tensor,
    rows: torch.Tensor,
) -> torch.Tensor:
    """As `minisgl.kernel.delta.delta_decode`, in two kernels.

    The rows of qkv and of gates may lie apart.
    """
    import triton

    from minisgl.kernel.triton.conv import conv_step_kernel
    from minisgl.kernel.triton.delta import delta_step_kernel

    batch, channels = qkv.shape
    mixed = qkv.new_empty(batch, channels)
    conv_step_kernel[batch, triton.cdiv(channels, _CHANNELS)](
        *(qkv, weights.conv, conv, rows, mixed, qkv.stride(0), channels),
        W=weights.conv.shape[1],
        BLOCK=_CHANNELS,
        num_warps=4,
    )
    sizes = _sizes(weights, recurrent, 32)
    heads, v_dim = sizes["V_HEADS"], sizes["V_DIM"]
    out = qkv.new_empty(batch, heads, v_dim)
    delta_step_kernel[batch, heads, triton.cdiv(v_dim, sizes["V_BLOCK"])](
        *(mixed, gates, weights.A_log, weights.dt_bias, recurrent, rows, out),
        gates.stride(0),
        **sizes,
        num_warps=4,
    )
    return out


def delta_prefill_triton(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    weights: DeltaWeights,
    conv: torch.Tensor,
    recurrent: torch.Tensor,
    waves: list[Wave],
) -> torch.Tensor:
    """As `minisgl.kernel.delta.delta_prefill`, in three kernels a wave."""
    import triton

    from minisgl.kernel.triton.delta import delta_chunk_kernel

    sizes = _sizes(weights, recurrent, 64)
    heads, v_dim = sizes["V_HEADS"], sizes["V_DIM"]
    mixed, out = (
        qkv.new_empty(len(qkv), width)
        for width in (qkv.shape[1], heads * v_dim)
    )
    # What is half as precise anyway need not be multiplied in full.
    exact = qkv.dtype == torch.float32
    for wave in waves:
        _convolve(qkv, weights.conv, conv, mixed, wave)
        blocks = triton.cdiv(v_dim, sizes["V_BLOCK"])
        delta_chunk_kernel[len(wave.segments), heads, blocks](
            *(mixed, gates, weights.A_log, weights.dt_bias),
            *(recurrent, wave.table, out, gates.stride(0)),
            **sizes,
            PRECISION="ieee" if exact else "tf32",
            num_warps=4,
        )
    return out.view(len(qkv), heads, v_dim)


def gated_norm_triton(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """As `GatedNorm.forward`, of [T, heads, size]; rows of gate may lie apart."""
    import triton

    from minisgl.kernel.triton.delta import gated_norm_kernel

    (tokens, heads, size), out = x.shape, torch.empty_like(x)
    gated_norm_kernel[tokens, heads](
        *(x, gate, weight, out, gate.stride(0), eps),
        HEADS=heads,
        DIM=size,
        BLOCK=triton.next_power_of_2(size),
        num_warps=1,
    )
    return out


def _convolve(
    qkv: torch.Tensor,
    weight: torch.Tensor,
    conv: torch.Tensor,
    mixed: torch.Tensor,
    wave: Wave,
) -> None:
    """Fill in `mixed` where the segments are, and let their past move on."""
    import triton

    from minisgl.kernel.triton.conv import conv_past_kernel, conv_tokens_kernel

    channels, width = weight.shape
    tokens, block, number = 16, 128, len(wave.segments)
    blocks = triton.cdiv(channels, block)
    conv_tokens_kernel[number, triton.cdiv(wave.longest, tokens), blocks](
        *(qkv, weight, conv, wave.table, mixed, qkv.stride(0), channels),
        W=width,
        TOKENS=tokens,
        BLOCK=block,
        num_warps=4,
    )
    conv_past_kernel[number, blocks](
        *(qkv, conv, wave.table, qkv.stride(0), channels),
        W=width,
        SLOTS=triton.next_power_of_2(width - 1),
        BLOCK=block,
        num_warps=4,
    )


def _sizes(
    weights: DeltaWeights, recurrent: torch.Tensor, columns: int
) -> dict[str, Any]:
    """Sizes of heads, and the most `columns` of a state for one program."""
    import triton

    _, v_heads, k_dim, v_dim = recurrent.shape
    return {
        "V_HEADS": v_heads,
        "K_HEADS": weights.k_heads,
        "K_DIM": k_dim,
        "V_DIM": v_dim,
        # A product on tensor cores is over 16 at least.
        "K_BLOCK": max(16, triton.next_power_of_2(k_dim)),
        "V_BLOCK": max(16, min(columns, triton.next_power_of_2(v_dim))),
    }
