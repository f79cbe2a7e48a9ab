"""Root-mean-square normalisation (Zhang and Sennrich, arXiv:1910.07467)."""

from __future__ import annotations

import torch

from minisgl.layers.base import BaseOP
from minisgl.layers.gpu_ops import flashinfer_for


class RMSNorm(BaseOP):
    """x / rms(x) * weight over the last dimension, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        self.eps = eps
        self.weight = torch.empty(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., size] -> the same shape and dtype."""
        library = flashinfer_for(x)
        if library is not None and x.dim() in (2, 3):
            normed: torch.Tensor = library.rmsnorm(x, self.weight, self.eps)
            return normed
        wide = x.float()
        mean_square = wide.square().mean(-1, keepdim=True)
        scaled = wide * torch.rsqrt(mean_square + self.eps)
        return self.weight * scaled.to(x.dtype)

    def forward_inplace(self, x: torch.Tensor) -> None:
        """Normalise `x` where it lies."""
        x.copy_(self.forward(x))


class RMSNormFused(RMSNorm):
    """Adds the residual stream and normalises the sum, in one operator."""

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm(x + residual), x + residual), both shaped like x.

        Without a residual the stream starts here: (norm(x), x). On a GPU both
        results may stand where the arguments stood.
        """
        library = flashinfer_for(x)
        if library is not None and residual is not None:
            library.fused_add_rmsnorm(x, residual, self.weight, self.eps)
            return x, residual
        total = x if residual is None else x + residual
        return super().forward(total), total
