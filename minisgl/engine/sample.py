"""From logits to tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch

from minisgl.core import Batch, SamplingParams
from minisgl.engine.gpu_sample import sample_on_gpu
from minisgl.engine.logprobs import BatchLogprobs
from minisgl.kernel.fused import draw_rows, runs_triton
from minisgl.layers.gpu_ops import flashinfer_on
from minisgl.utils.device import to_device

FAILED_TOKEN = -1
"""Stands where a row's logits were not numbers: that request has failed."""

_COLDEST, _HOTTEST = 1e-6, 1e30
"""Temperatures of drawn rows; beyond, float32 could make 0 or infinity of it."""

_PLAIN, _LIMITED, _GREEDY = range(3)
"""Rows drawn from all tokens, those drawn within limits, those not drawn."""

LogitsEdit = Callable[[torch.Tensor], torch.Tensor]
"""Takes float32 logits [B, vocab], may write into them, returns those to use."""

LogitsProcessor = Callable[[Batch], LogitsEdit | None]
"""Looks at a batch before it runs; returns what to do to its logits, or None."""

Rows: TypeAlias = torch.Tensor | slice
"""Some rows of a batch, int64 [n], or all of them."""


@dataclass
class BatchSamplingArgs:
    """What sampling needs of a batch of B; no tensors if every row is greedy.

    temperatures: float32 [B], above 0; 0 in greedy rows.
    top_k: int64 [B], from 1 to the vocabulary's size, which is off.
    top_p: float32 [B], in (0, 1].
    min_p: float32 [B], in [0, 1].
    uniforms: float32 [B], the random number of each row, in [0, 1).
    plain: the rows that are drawn from all tokens.
    limited: the rows that are drawn within limits.
    edits: applied to the logits in turn, before anything else.
    logprobs: records what the model itself thought, if somebody asks.
    """

    temperatures: torch.Tensor | None = None
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None
    uniforms: torch.Tensor | None = None
    plain: Rows | None = None
    limited: Rows | None = None
    edits: list[LogitsEdit] = field(default_factory=list)
    logprobs: BatchLogprobs | None = None


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
    if uniforms is None:
        uniforms = torch.rand(len(logits), device=logits.device)
    if (library := flashinfer_on(logits.device)) is not None:
        limits = (top_k, top_p, min_p)
        return sample_on_gpu(library, logits, temperatures, *limits, uniforms)
    if top_k is None and top_p is None and min_p is None:
        return _draw_from_all(logits, temperatures, uniforms)
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
    wanted = uniforms.unsqueeze(1) * edges.gather(1, last)
    place = torch.searchsorted(edges, wanted, right=True)
    # Rounding may point past the last token that was kept.
    return ids.gather(1, place.minimum(last)).squeeze(1)


def _draw_from_all(
    logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor
) -> torch.Tensor:
    """As `sample_impl` without limits; the order of tokens is then free.

    So they stay in the order of their ids, and nothing has to be sorted.
    """
    scores = logits.float()
    best = scores.max(dim=-1, keepdim=True)
    scores = (scores - best.values) / temperatures.unsqueeze(1)
    weights = scores.exp()
    edges = weights.cumsum(-1)
    wanted = uniforms.unsqueeze(1) * edges[:, -1:]
    place = torch.searchsorted(edges, wanted, right=True)
    place = place.clamp(max=logits.shape[-1] - 1)
    # Rounding may point past the end, and there at a token that cannot come.
    possible = weights.gather(1, place) > 0
    return torch.where(possible, place, best.indices).squeeze(1)


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
        self._params: list[SamplingParams] = []
        self._settings: BatchSamplingArgs | None = None

    def prepare(self, batch: Batch) -> BatchSamplingArgs:
        """Gather the parameters of the batch; done before it is launched."""
        args = BatchSamplingArgs(
            edits=[
                edit for p in self.processors if (edit := p(batch)) is not None
            ],
        )
        params = [req.sampling_params for req in batch.reqs]
        if params != self._params:
            self._params, self._settings = params, self._settings_of(params)
        if self._settings is not None:
            args = replace(self._settings, edits=args.edits)
            uniforms = pack([self._uniforms(batch)])
            args.uniforms = to_device(uniforms[0], torch.float32, self.device)
        args.logprobs = BatchLogprobs.of(batch, self.device)
        return args

    def _settings_of(
        self, params: list[SamplingParams]
    ) -> BatchSamplingArgs | None:
        """What drawn rows need but for their numbers; None if all are greedy.

        It is kept as long as the batch stays what it is: most steps differ
        from the one before in nothing but the numbers.
        """
        if all(p.is_greedy for p in params):
            return None
        size, args = self.vocab_size, BatchSamplingArgs()
        ways = [_way(p, size) for p in params]
        plain, limited = ways.count(_PLAIN), ways.count(_LIMITED)
        by_way = sorted(range(len(params)), key=ways.__getitem__)
        numbers: list[Sequence[float]] = [
            [_temperature(p) for p in params],
            [p.top_p for p in params],
            [p.min_p for p in params],
            [min(p.top_k, size) if p.top_k > 0 else size for p in params],
            by_way,
        ]
        # float32 holds integers up to 2**24, so one copy carries them all.
        packed = to_device(pack(numbers), torch.float32, self.device)
        args.temperatures = packed[0]
        if limited:
            args.top_p, args.min_p = packed[1], packed[2]
            args.top_k = packed[3].long()
        order = packed[4].long()
        args.plain = _some(order, 0, plain)
        args.limited = _some(order, plain, limited)
        return args

    def sample(
        self, logits: torch.Tensor, args: BatchSamplingArgs
    ) -> torch.Tensor:
        """[B, vocab] -> int32 [B]; FAILED_TOKEN where logits are not numbers."""
        bare = logits
        if args.edits:
            # A penalty may be less than a step of half precision.
            logits = logits.to(torch.float32, copy=True)
        for edit in args.edits:
            logits = edit(logits)
        all_plain = args.plain is not None and args.limited is None
        if all_plain and runs_triton(logits.device):
            tokens = _draw_all(logits, args)
        else:
            tokens = _draw_by_way(logits, args)
        if args.logprobs is not None:
            args.logprobs.record(bare, tokens)
        return tokens

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


def pack(numbers: Sequence[Sequence[float]]) -> torch.Tensor:
    """Rows of numbers as float32 [rows, n] on the host."""
    # From lists numpy makes it four times as quickly as torch does.
    return torch.from_numpy(np.array(numbers, dtype=np.float32))


def _way(params: SamplingParams, vocab_size: int) -> int:
    """How a row gets its token."""
    if params.is_greedy:
        return _GREEDY
    top_k = 0 < params.top_k < vocab_size
    limited = top_k or params.top_p < 1.0 or params.min_p > 0.0
    return _LIMITED if limited else _PLAIN


def _temperature(params: SamplingParams) -> float:
    """What a row's logits are divided by; 0 in greedy rows."""
    if params.is_greedy:
        return 0.0
    return min(max(params.temperature, _COLDEST), _HOTTEST)


def _some(order: torch.Tensor, first: int, count: int) -> Rows | None:
    """A part of the rows; None if it is empty, a slice if it is all of them."""
    if count == len(order):
        return slice(None)
    return order[first : first + count] if count else None


def _draw_all(logits: torch.Tensor, args: BatchSamplingArgs) -> torch.Tensor:
    """No row has limits: one function draws for all, int32 [B]."""
    assert args.temperatures is not None and args.uniforms is not None
    return draw_rows(logits, args.temperatures, args.uniforms, FAILED_TOKEN)


def _draw_by_way(logits: torch.Tensor, args: BatchSamplingArgs) -> torch.Tensor:
    """Every row by the way it needs, int32 [B]."""
    best = logits.max(dim=-1)
    # max lets NaN through, so one pass finds NaN, inf, and nothing allowed.
    sane = torch.isfinite(best.values)
    tokens = best.indices
    # A row goes its own way whatever the others want, or seeds would not
    # hold: the two ways turn a number into different tokens.
    _draw(tokens, logits, args, args.plain, (None, None, None))
    limits = (args.top_k, args.top_p, args.min_p)
    _draw(tokens, logits, args, args.limited, limits)
    return torch.where(sane, tokens, FAILED_TOKEN).to(torch.int32)


def _draw(
    tokens: torch.Tensor,
    logits: torch.Tensor,
    args: BatchSamplingArgs,
    rows: Rows | None,
    limits: tuple[torch.Tensor | None, ...],
) -> None:
    """Write the draws of some rows into `tokens`, int64 [B]."""
    if rows is None:
        return
    assert args.temperatures is not None and args.uniforms is not None
    top_k, top_p, min_p = (None if t is None else t[rows] for t in limits)
    tokens[rows] = sample_impl(
        logits[rows],
        args.temperatures[rows],
        top_k,
        top_p,
        min_p,
        args.uniforms[rows],
    )
