"""Operators and draws that a library computes on a GPU, against torch's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from minisgl.engine.sample import sample_impl
from minisgl.layers import RMSNorm, RMSNormFused, silu_and_mul
from minisgl.layers.gpu_ops import flashinfer_on
from minisgl.layers.rotary import RotaryEmbedding
from minisgl.selfcheck.report import Setting, Skip

_ROWS, _SIZE, _HEAD = 37, 512, 64
_FAR = 2e-2
"""What rounding to bfloat16 may do to a number, as a share of it."""

Operator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def share_apart(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference as a share of a number, or of their usual size."""
    size = wanted.abs() + wanted.std()
    return float(((got - wanted).abs() / size).max())


def _norm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    norm = RMSNorm(_SIZE, 1e-6)
    norm.weight = y[0]
    return norm.forward(x)


def _norm_of_heads(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    norm = RMSNorm(_HEAD, 1e-6)
    norm.weight = y[0, :_HEAD]
    return norm.forward(x.view(_ROWS, -1, _HEAD))


def _norm_of_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    norm = RMSNormFused(_SIZE, 1e-6)
    norm.weight = y[0].clone()
    return torch.cat(norm.forward(x, y))


def _rope(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rope = RotaryEmbedding(_HEAD, _HEAD, 4096, 10000.0)
    rope._cos_sin_cache = rope._cos_sin_cache.to(x.device)
    places = torch.arange(_ROWS, dtype=torch.int32, device=x.device) * 97
    return torch.cat(rope.forward(places, x, y))


OPERATORS: dict[str, Operator] = {
    "norm": _norm,
    "norm of heads": _norm_of_heads,
    "norm of a sum": _norm_of_sum,
    "silu and mul": lambda x, y: silu_and_mul(torch.cat([x, y], dim=-1)),
    "rope": _rope,
}


def check_operators(setting: Setting) -> str:
    """In bfloat16 by the library, in float32 by torch, of the same numbers."""
    _need_library(setting)
    shape, device = (2, _ROWS, _SIZE), setting.device
    worst = 0.0
    for name, run in OPERATORS.items():
        x, y = torch.randn(shape, device=device).bfloat16()
        wanted = run(x.float(), y.float())
        got = run(x.clone(), y.clone()).float()
        far = share_apart(got, wanted)
        assert far < _FAR, f"{name}: {far:.1%} apart"
        worst = max(worst, far)
    return f"{len(OPERATORS)} operators in bfloat16, at most {worst:.1%} apart"


def check_draws(setting: Setting) -> str:
    """Tokens that are drawn are allowed by a sort, too; of one there is one."""
    _need_library(setting)
    rows, device = 64, setting.device
    logits = 3 * torch.randn(rows, 1000, device=device)
    heat = torch.full((rows,), 0.8, device=device)
    one = torch.ones(rows, dtype=torch.int32, device=device)
    best = sample_impl(logits, heat, one, None)
    assert torch.equal(best, logits.argmax(-1)), "top-k of 1 is not the best"
    share = torch.full((rows,), 0.9, device=device)
    drawn = sample_impl(logits, heat, 50 * one, share)
    probs = (logits.double() / 0.8).softmax(-1)
    values, ids = probs.sort(-1, descending=True)
    kept = values[:, :50] / values[:, :50].sum(-1, keepdim=True)
    # A token more where the sum comes to the share within rounding.
    allowed = (kept.cumsum(-1) - kept < 0.9).sum(-1) + 1
    rank = (ids == drawn.unsqueeze(1)).int().argmax(-1)
    assert bool((rank < allowed).all()), "a token past the limits was drawn"
    return f"{2 * rows} draws, all within top-k and top-p"


def _need_library(setting: Setting) -> None:
    if flashinfer_on(setting.device) is None:
        raise Skip("flashinfer is for GPUs, or not installed: torch does it")
