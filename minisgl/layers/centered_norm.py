"""Norms whose checkpoints store how far their weight is from one."""

from __future__ import annotations

import torch

from minisgl.layers.gpu_ops import flashinfer_for
from minisgl.layers.norm import RMSNorm


class CenteredNorm(RMSNorm):
    """x / rms(x) * (1 + weight), computed in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        library = flashinfer_for(x)
        if library is not None and x.dim() == 2:
            normed: torch.Tensor = library.gemma_rmsnorm(
                x, self.weight, self.eps
            )
            return normed
        wide = x.float()
        mean_square = wide.square().mean(-1, keepdim=True)
        scaled = wide * torch.rsqrt(mean_square + self.eps)
        return (scaled * (1.0 + self.weight.float())).to(x.dtype)


class CenteredNormFused(CenteredNorm):
    """Adds the residual stream and normalises the sum, as `RMSNormFused`."""

    def forward(  # type: ignore[override]
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (norm(x + residual), x + residual), both shaped like x."""
        library = flashinfer_for(x)
        if library is not None and residual is not None:
            library.gemma_fused_add_rmsnorm(x, residual, self.weight, self.eps)
            return x, residual
        total = x if residual is None else x + residual
        return super().forward(total), total
