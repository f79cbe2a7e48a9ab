"""Root-mean-square normalisation (Zhang and Sennrich, arXiv:1910.07467)."""

from __future__ import annotations

import torch

from minisgl.layers.base import BaseOP


class RMSNorm(BaseOP):
    """x / rms(x) * weight over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        self.eps = eps
        self.weight = torch.empty(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same shape and dtype."""
        wide = x.float()
        mean_square = wide.square().mean(-1, keepdim=True)
        normed = wide * torch.rsqrt(mean_square + self.eps)
        return self.weight * normed.to(x.dtype)

    def forward_inplace(self, x: torch.Tensor) -> None:
        """Normalise `x` where it lies."""
        x.copy_(self.forward(x))


class RMSNormFused(RMSNorm):
    """Adds the residual stream and normalises the sum, in one operator."""

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm(x + residual), x + residual), both shaped like x.

        Without a residual the stream starts here: (norm(x), x).
        """
        total = x if residual is None else x + residual
        return super().forward(total), total
