"""The gated activations of MLPs (Shazeer, arXiv:2002.05202)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_and_mul(
    x: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """silu(gate) * up for x [..., 2 d] = [gate | up]; [..., d], into `out`."""
    gate, up = x.chunk(2, dim=-1)
    return torch.mul(F.silu(gate), up, out=out)


def gelu_and_mul(
    x: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """gelu(gate) * up, with the exact gelu; shapes as in `silu_and_mul`."""
    gate, up = x.chunk(2, dim=-1)
    return torch.mul(F.gelu(gate), up, out=out)
