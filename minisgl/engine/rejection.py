"""Drafts that were drawn: kept or replaced so that nobody can tell from outside.

A draft x was drawn from q, the model would have drawn from p. It is kept with
probability min(1, p(x) / q(x)); else the token is drawn from what p has more than
q, max(0, p - q). Either way it is a draw from p (Leviathan et al.,
arXiv:2211.17192; Chen et al., arXiv:2302.01318).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minisgl.core import SamplingParams
from minisgl.engine.sample import LogitsEdit, _temperature, pack
from minisgl.utils.device import to_device


@dataclass
class Limits:
    """How n rows of logits become distributions, as in `BatchSamplingArgs`.

    temperatures, top_p, min_p: float32 [n].
    top_k: int64 [n].
    """

    temperatures: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor

    @classmethod
    def of(
        cls,
        params: Sequence[SamplingParams],
        vocab_size: int,
        device: torch.device,
    ) -> Limits:
        """Those of requests that are not greedy."""
        numbers = pack(
            [
                [_temperature(p) for p in params],
                [p.top_p for p in params],
                [p.min_p for p in params],
                [
                    min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size
                    for p in params
                ],
            ]
        )
        packed = to_device(numbers, torch.float32, device)
        return cls(packed[0], packed[1], packed[2], packed[3].long())

    def distribution(self, logits: torch.Tensor) -> torch.Tensor:
        """[n, vocab] -> float32 [n, vocab], what `sample_impl` draws from.

        Rows that are not numbers stay what they are.
        """
        scores, ids = logits.float().sort(dim=-1, descending=True, stable=True)
        scores = (scores - scores[:, :1]) / self.temperatures.unsqueeze(1)
        probs = torch.softmax(scores, dim=-1)
        edges = probs.cumsum(-1)
        rank = torch.arange(probs.shape[-1], device=probs.device)
        whole = edges.gather(1, self.top_k.unsqueeze(1) - 1)
        top_p = self.top_p.unsqueeze(1)
        cut = rank >= self.top_k.unsqueeze(1)
        cut |= (edges - probs >= top_p * whole) & (top_p < 1.0)
        cut |= probs < self.min_p.unsqueeze(1) * probs[:, :1]
        probs = probs.masked_fill(cut, 0.0)
        probs = torch.zeros_like(probs).scatter(1, ids, probs)
        return probs / probs.sum(-1, keepdim=True)


def judge(
    wanted: torch.Tensor,
    guessed: torch.Tensor,
    drafts: torch.Tensor,
    uniforms: torch.Tensor,
) -> torch.Tensor:
    """What to draw from in the place of n drafts: float32 [n, vocab], any scale.

    Of a draft that is kept nothing but itself, of another what is wanted more
    often than it was guessed; where rounding has left nothing of that, p.

    wanted, guessed: float32 [n, vocab], the model's distribution p, and q, from
        which the drafts were drawn. A row of p may be NaN, and stays so.
    drafts: int64 [n].
    uniforms: float32 [n] in [0, 1), independent of how the drafts were drawn.
    """
    place = drafts.unsqueeze(1)
    kept = uniforms.unsqueeze(1) * guessed.gather(1, place) < wanted.gather(
        1, place
    )
    rest = (wanted - guessed).clamp(min=0.0)
    # Rounding may leave nothing of two distributions that are equal.
    rest = torch.where(rest.sum(-1, keepdim=True) > 0.0, rest, wanted)
    draft = torch.zeros_like(wanted).scatter(1, place, 1.0)
    return torch.where(kept, draft, rest)


def rejecting(
    rows: torch.Tensor,
    limits: Limits,
    drafts: torch.Tensor,
    probs: torch.Tensor,
    uniforms: torch.Tensor,
) -> LogitsEdit:
    """An edit after which drawing from some rows means to judge their drafts.

    It has to be the last one, and the sampler is to draw from these rows at a
    temperature of 1 without limits. A draft was kept if it is drawn.

    rows: int64 [n], of the batch; the other arguments as in `judge`.
    """

    def edit(logits: torch.Tensor) -> torch.Tensor:
        wanted = limits.distribution(logits[rows])
        logits[rows] = judge(wanted, probs, drafts, uniforms).log()
        return logits

    return edit
