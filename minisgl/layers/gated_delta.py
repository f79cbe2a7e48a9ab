"""The layer that stands for attention in three of four layers of Qwen3.5."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from minisgl.attention.stateful import StatefulBackend, linear_metadata
from minisgl.core import get_global_ctx
from minisgl.distributed import get_tp_info
from minisgl.kernel.delta import DeltaWeights
from minisgl.kernel.delta_triton import gated_norm_triton
from minisgl.kernel.fused import runs_triton
from minisgl.layers.base import BaseOP
from minisgl.layers.linear import LinearColParallelMerged, LinearRowParallel

if TYPE_CHECKING:
    from minisgl.models.linear_config import LinearConfig


class CausalConv(BaseOP):
    """The weight of a convolution over time, each channel by itself."""

    def __init__(self, channels: int, width: int) -> None:
        self.weight = torch.empty(channels, 1, width)

    def forward(self) -> torch.Tensor:
        """As kernels read it: [channels, width]."""
        return self.weight.squeeze(1)


class GatedNorm(BaseOP):
    """rms-norm(x) * weight * silu(gate), over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        self._eps = eps
        self.weight = torch.empty(size)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x, gate [T, heads, size] -> the same shape and dtype."""
        if runs_triton(x.device):
            return gated_norm_triton(x, gate, self.weight, self._eps)
        return self.forward_torch(x, gate)

    def forward_torch(
        self, x: torch.Tensor, gate: torch.Tensor
    ) -> torch.Tensor:
        """The reference."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)
        normed = self.weight * (wide * scale).to(x.dtype)
        return (normed * F.silu(gate.float())).to(x.dtype)


class GatedDeltaNet(BaseOP):
    """Project, convolve, run the gated delta rule, gate, project back.

    layer_id: among the layers of this kind. Everything is of the whole model in
    `config`; a rank has its share of the heads.
    """

    def __init__(
        self, config: LinearConfig, hidden_size: int, eps: float, layer_id: int
    ) -> None:
        values = config.parts[2]
        self.in_proj = LinearColParallelMerged(
            hidden_size,
            [*config.parts, values, config.num_v_heads, config.num_v_heads],
            has_bias=False,
        )
        local = config.shared(get_tp_info().size)
        channels = sum(local.parts)
        self.conv1d = CausalConv(channels, config.conv_width)
        self.A_log = torch.empty(local.num_v_heads)
        self.dt_bias = torch.empty(local.num_v_heads)
        self.norm = GatedNorm(config.v_dim, eps)
        self.out_proj = LinearRowParallel(values, hidden_size, has_bias=False)
        self._layer_id, self._local = layer_id, local
        self._sizes = [channels, local.parts[2], 2 * local.num_v_heads]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden], for the running batch."""
        qkv, z, gates = self.in_proj.forward(x).split(self._sizes, dim=-1)
        weights = DeltaWeights(
            self.conv1d.forward(),
            self.A_log,
            self.dt_bias,
            self._local.num_k_heads,
            self._local.k_dim,
        )
        ctx = get_global_ctx()
        assert isinstance(ctx.attn_backend, StatefulBackend)
        out = ctx.attn_backend.linear.forward(
            qkv, gates, weights, self._layer_id, linear_metadata(ctx.batch)
        )
        out = self.norm.forward(out, z.view_as(out))
        return self.out_proj.forward(out.flatten(1))
