"""From logits to tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from minisgl.core import Batch
from minisgl.utils.device import to_device

FAILED_TOKEN = -1
"""Stands where a row's logits were not numbers: that request has failed."""

_COLDEST = 1e-6
"""Least temperature of a drawn row; a smaller one could be 0 in float32."""

LogitsEdit = Callable[[torch.Tensor], torch.Tensor]
LogitsProcessor = Callable[[Batch], LogitsEdit | None]
"""Looks at a batch before it runs; returns what to do to its logits, or None."""


@dataclass
class BatchSamplingArgs:
    """What sampling needs of a batch of B; all None when every row is greedy.

    temperatures: float32 [B], above 0; 1 in greedy rows.
    top_k: int64 [B], from 1 to the vocabulary's size, which is off.
    top_p: float32 [B], in (0, 1].
    min_p: float32 [B], in [0, 1].
    uniforms: float32 [B], the random number of each row, in [0, 1).
    greedy: bool [B].
    edits: applied to the logits in turn, before anything else.
    """

    temperatures: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    uniforms: torch.Tensor | None = None
    greedy: torch.Tensor | None = None
    edits: list[LogitsEdit] = field(default_factory=list)


def sample_impl(
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    min_p: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw one token a row by inverting the cumulative distribution.

    logits: [B, vocab]; the other arguments as in `BatchSamplingArgs`. One
    number in [0, 1) decides a row, so that a row's draw is its own affair.
    top_p counts what top_k left as the whole. Returns int64 [B].
    """
    # Likeliest first, ties by id: each limit keeps the head of a row.
    scores, ids = logits.float().sort(dim=-1, descending=True, stable=True)
    # None is above 0: the coldest row may overflow to -inf, never to NaN.
    scores = (scores - scores[:, :1]) / temperatures.unsqueeze(1)
    probs = torch.softmax(scores, dim=-1)
    edges = probs.cumsum(-1)
    keep, whole = probs > 0, edges[:, -1:]
    if top_k is not None:
        rank = torch.arange(probs.shape[-1], device=probs.device)
        keep &= rank < top_k.unsqueeze(1)
        whole = edges.gather(1, top_k.unsqueeze(1) - 1)
    if top_p is not None:
        reached = edges - probs >= top_p.unsqueeze(1) * whole
        keep &= ~reached | (top_p >= 1.0).unsqueeze(1)
    if min_p is not None:
        keep &= probs >= min_p.unsqueeze(1) * probs[:, :1]
    last = (keep.sum(-1, keepdim=True) - 1).clamp(min=0)
    if uniforms is None:
        uniforms = torch.rand(len(probs), device=probs.device)
    wanted = uniforms.unsqueeze(1) * edges.gather(1, last)
    place = torch.searchsorted(edges, wanted, right=True)
    # Rounding may point past the last token that was kept.
    return ids.gather(1, place.minimum(last)).squeeze(1)


@dataclass
class Sampler:
    """Chooses the next token of every row.

    seed: makes the draws of requests without a seed of their own repeatable.
    processors: what may edit logits, in order.
    """

    device: torch.device
    vocab_size: int
    seed: int | None = None
    processors: list[LogitsProcessor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._shared = random.Random(self.seed)

    def prepare(self, batch: Batch) -> BatchSamplingArgs:
        """Gather the parameters of the batch; done before it is launched."""
        edits = [
            edit for p in self.processors if (edit := p(batch)) is not None
        ]
        params = [req.sampling_params for req in batch.reqs]
        if all(p.is_greedy for p in params):
            return BatchSamplingArgs(edits=edits)
        size = self.vocab_size
        numbers = {
            "temperatures": [
                1.0 if p.is_greedy else max(p.temperature, _COLDEST)
                for p in params
            ],
            "top_p": [p.top_p for p in params],
            "min_p": [p.min_p for p in params],
            "uniforms": self._uniforms(batch),
        }
        top_k = [min(p.top_k, size) if p.top_k > 0 else size for p in params]
        greedy = [p.is_greedy for p in params]
        return BatchSamplingArgs(
            **{k: self._tensor(v, torch.float32) for k, v in numbers.items()},
            top_k=self._tensor(top_k, torch.int64),
            greedy=self._tensor(greedy, torch.bool),
            edits=edits,
        )

    def sample(
        self, logits: torch.Tensor, args: BatchSamplingArgs
    ) -> torch.Tensor:
        """[B, vocab] -> int32 [B]; FAILED_TOKEN where logits are not numbers."""
        for edit in args.edits:
            logits = edit(logits)
        best = logits.max(dim=-1)
        # max lets NaN through, so one pass finds NaN, inf, and nothing allowed.
        sane = torch.isfinite(best.values)
        tokens = best.indices
        if args.temperatures is not None:
            usable = torch.where(sane.unsqueeze(1), logits, 0.0)
            drawn = sample_impl(
                usable,
                args.temperatures,
                args.top_k,
                args.top_p,
                args.min_p,
                args.uniforms,
            )
            assert args.greedy is not None
            tokens = torch.where(args.greedy, tokens, drawn)
        return torch.where(sane, tokens, FAILED_TOKEN).to(torch.int32)

    def _uniforms(self, batch: Batch) -> list[float]:
        """A seeded request's number depends on its seed and its length only."""
        result = []
        for req in batch.reqs:
            source, seed = self._shared, req.sampling_params.seed
            if seed is not None:
                source = random.Random(f"{seed}/{req.device_len}")
            # 24 bits: the most that float32 holds without rounding up to 1.
            result.append(source.getrandbits(24) / 2**24)
        return result

    def _tensor(
        self, data: Sequence[float], dtype: torch.dtype
    ) -> torch.Tensor:
        return to_device(data, dtype, self.device)
