"""Sizes of linear-attention layers, whose past is a state and not a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

_SIZES = {
    "num_k_heads": "linear_num_key_heads",
    "num_v_heads": "linear_num_value_heads",
    "k_dim": "linear_key_head_dim",
    "v_dim": "linear_value_head_dim",
    "conv_width": "linear_conv_kernel_dim",
}


@dataclass(frozen=True)
class LinearConfig:
    """Which layers are linear, and how large the heads of these are.

    is_linear: for each layer of the model whether it is.
    num_k_heads, num_v_heads: a query head goes with every key head, and
        num_v_heads / num_k_heads neighbouring value heads share one.
    k_dim, v_dim: of a head. conv_width: tokens that the convolution sees.
    """

    is_linear: tuple[bool, ...]
    num_k_heads: int
    num_v_heads: int
    k_dim: int
    v_dim: int
    conv_width: int

    @property
    def num_layers(self) -> int:
        """Linear layers."""
        return sum(self.is_linear)

    @property
    def parts(self) -> list[int]:
        """Channels of queries, of keys and of values."""
        keys = self.num_k_heads * self.k_dim
        return [keys, keys, self.num_v_heads * self.v_dim]

    def layer(self, index: int) -> int:
        """The number of layer `index` among the layers of its own kind."""
        kind = self.is_linear[index]
        return self.is_linear[:index].count(kind)

    def shared(self, size: int) -> LinearConfig:
        """With the heads that one of `size` ranks has."""
        return replace(
            self,
            num_k_heads=self.num_k_heads // size,
            num_v_heads=self.num_v_heads // size,
        )

    @classmethod
    def from_hf(cls, config: Any) -> LinearConfig | None:
        """Translate a transformers configuration; None without such layers.

        Raises:
            ValueError: sizes that do not fit each other, or another kind.
        """
        kinds = getattr(config, "layer_types", None) or []
        if "linear_attention" not in kinds:
            return None
        odd = set(kinds) - {"linear_attention", "full_attention"}
        if odd:
            raise ValueError(f"layers of type {odd.pop()!r} are not supported")
        sizes = {ours: getattr(config, hf) for ours, hf in _SIZES.items()}
        keys, values = sizes["num_k_heads"], sizes["num_v_heads"]
        if values % keys:
            raise ValueError(
                f"linear_num_value_heads is {values}, which is no multiple of "
                f"the {keys} linear_num_key_heads"
            )
        return cls(tuple(kind == "linear_attention" for kind in kinds), **sizes)
