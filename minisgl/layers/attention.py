"""Attention between the projections: norm, rotate, attend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from minisgl.attention.stored import AttendsStored
from minisgl.core import get_global_ctx
from minisgl.distributed import get_tp_info
from minisgl.kernel.fused import norm_rope, runs_triton
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
        ctx = get_global_ctx()
        batch, backend, pool = ctx.batch, ctx.attn_backend, ctx.kv_cache
        device, alike = qkv.device, pool.dtype == qkv.dtype
        if isinstance(backend, AttendsStored) and alike and self._fits(device):
            cache = pool.k_cache(self.layer_id), pool.v_cache(self.layer_id)
            q, _ = self._fused(qkv, batch.positions, (*cache, batch.out_loc))
            return backend.attend(q, self.layer_id, batch).flatten(1)
        q, k, v = self._rotated(qkv, batch.positions)
        out = backend.forward(q, k, v, self.layer_id, batch)
        return out.flatten(1)

    def _rotated(
        self, qkv: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Heads of q, k and v, [T, heads, head_dim], as attention takes them."""
        q, k, v = qkv.split(self.qkv_sizes, dim=-1)
        if self.q_norm is None or self.k_norm is None:
            q, k = self.rotary.forward(positions, q, k)
        elif self._fits(qkv.device):
            q, k = self._fused(qkv, positions)
        else:
            q = self.q_norm.forward(self._heads(q)).flatten(1)
            k = self.k_norm.forward(self._heads(k)).flatten(1)
            q, k = self.rotary.forward(positions, q, k)
        return self._heads(q), self._heads(k), self._heads(v)

    def _fits(self, device: torch.device) -> bool:
        """Whether there is one kernel for norms and rotation.

        It takes heads that are rotated as a whole and a power of 2 long.
        """
        dim = self.head_dim
        whole = self.rotary._rotary_dim == dim and dim & (dim - 1) == 0
        return self.q_norm is not None and whole and runs_triton(device)

    def _fused(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        store: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.q_norm is not None and self.k_norm is not None
        weights = self.q_norm.weight, self.k_norm.weight
        q_heads, k_heads, _ = (n // self.head_dim for n in self.qkv_sizes)
        table, eps = self.rotary._cos_sin_cache, self.q_norm.eps
        heads = (q_heads, k_heads)
        return norm_rope(qkv, positions, table, weights, heads, eps, store)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), -1, self.head_dim)
