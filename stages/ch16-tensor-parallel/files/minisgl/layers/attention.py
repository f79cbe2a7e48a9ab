"""Attention between the projections: norm, rotate, attend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from minisgl.core import get_global_ctx
from minisgl.distributed import get_tp_info
from minisgl.layers.base import StateLessOP
from minisgl.layers.norm import RMSNorm
from minisgl.layers.rotary import get_rope
from minisgl.utils import div_even

if TYPE_CHECKING:
    from minisgl.models import RotaryConfig


class AttentionLayer(StateLessOP):
    """Norms and rotates q and k; the attention itself is the backend's.

    num_qo_heads, num_kv_heads: of the whole model; a rank has its share, which
    is one kv head where there are fewer of them than ranks.
    """

    def __init__(
        self,
        layer_id: int,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rotary_config: RotaryConfig,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
    ) -> None:
        self.layer_id = layer_id
        self.head_dim = head_dim
        size = get_tp_info().size
        q_size = div_even(num_qo_heads, size) * head_dim
        kv_size = div_even(num_kv_heads, size, allow_replicate=True) * head_dim
        self.qkv_sizes = [q_size, kv_size, kv_size]
        self.q_norm, self.k_norm = q_norm, k_norm
        self.rotary = get_rope(
            rotary_config.head_dim,
            rotary_config.rotary_dim,
            rotary_config.max_position,
            rotary_config.base,
            tuple((rotary_config.scaling or {}).items()),
        )

    def forward(self, qkv: torch.Tensor) -> torch.Tensor:
        """[T, q + k + v] -> [T, q], this rank's, for the running batch."""
        batch = get_global_ctx().batch
        q, k, v = qkv.split(self.qkv_sizes, dim=-1)
        if self.q_norm is not None and self.k_norm is not None:
            q = self.q_norm.forward(self._heads(q)).flatten(1)
            k = self.k_norm.forward(self._heads(k)).flatten(1)
        q, k = self.rotary.forward(batch.positions, q, k)
        backend = get_global_ctx().attn_backend
        k, v = self._heads(k), self._heads(v)
        out = backend.forward(self._heads(q), k, v, self.layer_id, batch)
        return out.flatten(1)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), -1, self.head_dim)
