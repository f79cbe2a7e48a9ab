"""What the stand-ins of this folder share: checks, and attention in plain torch."""

from __future__ import annotations

import torch

HALVES = (torch.float16, torch.bfloat16)
"""What the real kernels take. The stand-ins take float32 too, for exact parity."""


def check(condition: bool, message: str) -> None:
    """Refuse as the C++ side of a library does.

    Raises:
        RuntimeError: with that message.
    """
    if not condition:
        raise RuntimeError(message)


def check_dtype(x: torch.Tensor, name: str) -> None:
    check(
        x.dtype in (*HALVES, torch.float32),
        f"{name} is {x.dtype}; only fp16 and bf16 are supported",
    )


def check_int32(x: torch.Tensor, name: str, dims: int = 1) -> None:
    check(
        x.dtype == torch.int32, f"{name} must have dtype int32, not {x.dtype}"
    )
    check(x.dim() == dims, f"{name} must have {dims} dimensions, not {x.dim()}")


def check_rows(x: torch.Tensor, name: str) -> None:
    check(x.stride(-1) == 1, f"{name} must have contiguous last dimension")


def check_device(x: torch.Tensor, like: torch.Tensor, name: str) -> None:
    check(
        x.device == like.device, f"{name} is on {x.device}, not {like.device}"
    )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float | None = None,
) -> torch.Tensor:
    """Softmax attention of one request: q [n, heads, dim], k, v [m, kv_heads, dim].

    The causal mask is aligned to the end: the last query sees all keys.
    """
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.float(), k)
    scores *= q.shape[-1] ** -0.5 if scale is None else scale
    if causal:
        n, m = scores.shape[1:]
        later = torch.arange(m) > torch.arange(m - n, m).unsqueeze(1)
        scores = scores.masked_fill(later.to(scores.device), -torch.inf)
    return torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v).to(q.dtype)


def read_pages(
    cache: torch.Tensor, pages: torch.Tensor, length: int
) -> torch.Tensor:
    """The first `length` tokens in those pages: [length, kv_heads, dim]."""
    return cache[pages.long()].flatten(0, 1)[:length]
