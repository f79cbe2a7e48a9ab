"""RoPE on neighbours: the layout of GPT-J, GLM and Meta's own Llama files."""

from __future__ import annotations

import torch

from minisgl.layers.rotary import RotaryEmbedding


class InterleavedRotary(RotaryEmbedding):
    """Pairs component 2 i with 2 i + 1; pair i turns by the parent's angle i.

    Components past rotary_dim stay.
    """

    def _rotate(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """x [T, heads * head_size]; cos, sin float32 [T, 1, rotary_dim / 2].

        Computed in float32, rounded once, shaped and typed like x.
        """
        heads = x.view(len(x), -1, self.head_size)
        turning = heads[..., : self._rotary_dim].float()
        even, odd = turning[..., 0::2], turning[..., 1::2]
        turned = (even * cos - odd * sin, odd * cos + even * sin)
        mixed = torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)
        rest = heads[..., self._rotary_dim :]
        return torch.cat([mixed, rest], dim=-1).view_as(x)


def to_halves(
    weight: torch.Tensor, head_dim: int, rotary_dim: int
) -> torch.Tensor:
    """Reorder a q or k projection so that the halves of `RotaryEmbedding` fit.

    weight: [heads * head_dim, ...], a matrix or a bias whose outputs are to be
        turned as neighbours. The result has the same rows in another order:
        turned as halves they give the same scores between q and k.
    """
    heads = weight.view(-1, head_dim, *weight.shape[1:])
    turning, rest = heads[:, :rotary_dim], heads[:, rotary_dim:]
    parts = [turning[:, 0::2], turning[:, 1::2], rest]
    return torch.cat(parts, dim=1).reshape(weight.shape)
