"""Layer normalisation (Ba et al., arXiv:1607.06450), with or without a bias."""

from __future__ import annotations

import torch

from minisgl.layers.base import BaseOP


class LayerNorm(BaseOP):
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the last dimension.

    Computed in float32 and rounded once, at the end. The weights' names are
    `weight` and, with `has_bias`, `bias`; eps is no weight.
    """

    def __init__(self, size: int, eps: float, has_bias: bool = True) -> None:
        self._eps = eps
        self.weight = torch.empty(size)
        self.bias = torch.empty(size) if has_bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same shape and dtype."""
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        out = centred * torch.rsqrt(variance + self._eps) * self.weight.float()
        if self.bias is not None:
            out = out + self.bias.float()
        return out.to(x.dtype)
