"""Rotary position embedding (Su et al., arXiv:2104.09864) and its scalings."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from minisgl.layers.base import StateLessOP
from minisgl.layers.gpu_ops import flashinfer_for

__all__ = ["RotaryEmbedding", "get_rope", "set_rope_device"]

_Scale = Callable[[torch.Tensor], torch.Tensor]

_KERNEL_SIZES = (64, 128, 256, 512)
"""Head sizes for which FlashInfer has a kernel."""


class RotaryEmbedding(StateLessOP):
    """Turns pairs of a head's components by an angle that grows with position.

    Component i is paired with i + rotary_dim / 2; pair i turns by
    position * base ** (-2 i / rotary_dim). Components past rotary_dim stay.

    post_process: what a scaling makes of the float32 frequencies.
    attention_factor: multiplies cosines and sines (yarn).
    """

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        max_position_embeddings: int,
        base: float,
        post_process: _Scale | None = None,
        attention_factor: float = 1.0,
    ) -> None:
        self.head_size = head_size
        self._rotary_dim = rotary_dim
        exponents = torch.arange(0, rotary_dim, 2).float() / rotary_dim
        inv_freq = 1.0 / base**exponents
        if post_process is not None:
            inv_freq = post_process(inv_freq)
        positions = torch.arange(max_position_embeddings).float()
        angles = torch.outer(positions, inv_freq)
        table = torch.cat([angles.cos(), angles.sin()], dim=-1)
        self._cos_sin_cache = table * attention_factor

    def forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate query and key, each [T, heads * head_size]; positions int [T].

        Returns tensors of the same shapes and dtypes: new ones, or on a GPU
        the arguments, rotated where they are.
        """
        library = flashinfer_for(query)
        if library is not None and self.head_size in _KERNEL_SIZES:
            library.apply_rope_with_cos_sin_cache_inplace(
                positions, query, key, self.head_size, self._cos_sin_cache
            )
            return query, key
        cos_sin = self._cos_sin_cache[positions].unsqueeze(1)
        cos, sin = cos_sin.chunk(2, dim=-1)
        return self._rotate(query, cos, sin), self._rotate(key, cos, sin)

    def _rotate(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        heads = x.view(len(x), -1, self.head_size)
        half = self._rotary_dim // 2
        low = heads[..., :half].float()
        high = heads[..., half : 2 * half].float()
        rest = heads[..., 2 * half :]
        turned = (low * cos - high * sin, high * cos + low * sin)
        parts = [part.to(x.dtype) for part in turned]
        return torch.cat([*parts, rest], dim=-1).view_as(x)


def _llama3(scaling: dict[str, Any]) -> _Scale:
    """Llama 3.1: slow pairs are slowed by `factor`, fast ones kept."""
    original = float(scaling["original_max_position_embeddings"])
    factor = float(scaling["factor"])
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]

    def scale(inv_freq: torch.Tensor) -> torch.Tensor:
        wavelength = 2 * math.pi / inv_freq
        keep: torch.Tensor = (
            (original / wavelength - low) / (high - low)
        ).clamp(0.0, 1.0)
        return (1 - keep) * inv_freq / factor + keep * inv_freq

    return scale


def _yarn(scaling: dict[str, Any], dim: int, base: float) -> _Scale:
    """YaRN (Peng et al., arXiv:2309.00071): a ramp between the two, by pair."""
    original = float(scaling["original_max_position_embeddings"])
    factor = float(scaling["factor"])

    def pair_of(turns: float) -> float:
        wavelength = original / (turns * 2 * math.pi)
        return dim * math.log(wavelength) / (2 * math.log(base))

    low = pair_of(scaling.get("beta_fast") or 32)
    high = pair_of(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)

    # Equal ends would divide by zero: a ramp that short is a step.
    width = high - low or 0.001

    def scale(inv_freq: torch.Tensor) -> torch.Tensor:
        pairs = torch.arange(dim // 2).float()
        keep = 1 - ((pairs - low) / width).clamp(0.0, 1.0)
        return inv_freq / factor * (1 - keep) + inv_freq * keep

    return scale


def _yarn_attention(scaling: dict[str, Any]) -> float:
    """How much yarn sharpens attention, as DeepSeek's variant of it may state."""
    if (stated := scaling.get("attention_factor")) is not None:
        return float(stated)

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(max(scaling["factor"], 1.0)) + 1.0

    mine, all_dims = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mine and all_dims:
        return mscale(mine) / mscale(all_dims)
    return mscale(1.0)


def _get_rope(
    head_dim: int,
    rotary_dim: int,
    max_position: int,
    base: float,
    rope_scaling: dict[str, Any] | None = None,
) -> RotaryEmbedding:
    scaling = rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    sizes = (head_dim, rotary_dim, max_position, base)
    try:
        match kind:
            case "default":
                return RotaryEmbedding(*sizes)
            case "linear":
                factor = scaling["factor"]
                return RotaryEmbedding(*sizes, lambda freq: freq / factor)
            case "llama3":
                return RotaryEmbedding(*sizes, _llama3(scaling))
            case "yarn":
                scale = _yarn(scaling, rotary_dim, base)
                return RotaryEmbedding(*sizes, scale, _yarn_attention(scaling))
    except KeyError as missing:
        raise ValueError(f"rope scaling {kind!r} states no {missing}") from None
    known = "default, linear, llama3, yarn"
    raise ValueError(f"rope scaling {kind!r} is not supported; known: {known}")


_ROPE_DEVICE: torch.device | None = None


def set_rope_device(device: torch.device) -> None:
    """Where the tables of `get_rope` are made, whatever the default device."""
    global _ROPE_DEVICE
    _ROPE_DEVICE = device
    get_rope.cache_clear()


@cache
def get_rope(
    head_dim: int,
    rotary_dim: int,
    max_position: int,
    base: float,
    rope_scaling: tuple[tuple[str, Any], ...] | None = None,
) -> RotaryEmbedding:
    """The one table of these settings, shared by all layers that ask for it.

    rope_scaling: the items of the checkpoint's dict, as a tuple to be hashable.

    Raises:
        ValueError: a scaling that is not known or lacks one of its settings.
    """
    scaling = dict(rope_scaling) if rope_scaling is not None else None
    with torch.device(_ROPE_DEVICE or "cpu"):
        return _get_rope(head_dim, rotary_dim, max_position, base, scaling)
