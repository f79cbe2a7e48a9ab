"""Norms whose checkpoints store how far their weight is from one."""

from __future__ import annotations

import torch

from minisgl.layers.gpu_ops import flashinfer_for
from minisgl.layers.norm import RMSNorm, RMSNormFused


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * (1 + weight) over the last dimension, in float32."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (1.0 + weight.float())).to(x.dtype)


class CenteredNorm(RMSNorm):
    """x / rms(x) * (1 + weight), computed in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, size] -> the same shape and dtype."""
        if (library := flashinfer_for(x)) is None:
            return _norm(x, self.weight, self.eps)
        normed: torch.Tensor = library.gemma_rmsnorm(x, self.weight, self.eps)
        return normed


class CenteredNormFused(RMSNormFused):
    """Adds the residual stream and normalises the sum, as `RMSNormFused`."""

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        library = flashinfer_for(x)
        if library is not None and residual is not None:
            library.gemma_fused_add_rmsnorm(x, residual, self.weight, self.eps)
            return x, residual
        total = x if residual is None else x + residual
        return _norm(total, self.weight, self.eps), total
