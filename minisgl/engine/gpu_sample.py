"""Drawing tokens on a GPU: nothing is sorted, and limits cost two kernels."""

from __future__ import annotations

from types import ModuleType

import torch
import torch.nn.functional as F

_BLOCK = 128
"""Tokens added up before the search; it divides most vocabularies."""


def sample_on_gpu(
    library: ModuleType,
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """As `sample_impl`, by FlashInfer, which is the library; int64 [B].

    The same tokens are allowed, but for ties at a limit, all of which are. A
    row's number picks among them in the order of their ids. FlashInfer's own
    draws would depend on the row in which a request stands.
    """
    probs = library.sampling.softmax(logits.contiguous(), temperatures)
    if top_k is not None:
        probs = library.sampling.top_k_renorm_probs(probs, top_k)
    if top_p is not None:
        # Sums of floats in any order would let two ranks differ.
        cut = library.sampling.top_p_renorm_probs(
            probs, top_p, is_deterministic=True
        )
        probs = torch.where((top_p < 1.0).unsqueeze(1), cut, probs)
    if min_p is not None:
        least = min_p * probs.amax(-1)
        probs = probs.masked_fill(probs < least.unsqueeze(1), 0.0)
    return _draw(probs, uniforms)


def _draw(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Where a row's running sum passes its share `uniforms` of the total.

    weights: float32 [B, vocab], none negative. Returns int64 [B].

    First the block of tokens is found, then the token in it: a running sum over
    a whole vocabulary is one long chain, those over blocks are short.
    """
    rows, size = weights.shape
    if size % _BLOCK:
        weights = F.pad(weights, (0, -size % _BLOCK))
    blocks = weights.view(rows, -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64)
    edges = sums.cumsum(-1)
    wanted = uniforms.double().unsqueeze(1) * edges[:, -1:]
    block = _first_past(edges, wanted)
    wanted = wanted - edges.gather(1, block) + sums.gather(1, block)
    inner = blocks[torch.arange(rows, device=weights.device), block.squeeze(1)]
    place = _first_past(inner.double().cumsum(-1), wanted)
    # Rounding may point at a weight of 0; the block then has others.
    possible = inner.gather(1, place) > 0
    place = torch.where(possible, place, inner.argmax(-1, keepdim=True))
    return (block * _BLOCK + place).squeeze(1)


def _first_past(edges: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The first place of each row whose edge is above the row's number."""
    place = torch.searchsorted(edges, wanted, right=True)
    return place.clamp(max=edges.shape[-1] - 1)
