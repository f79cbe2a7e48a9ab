"""What requests may ask to be done to their logits before a token is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch

from minisgl.core import Batch, Req
from minisgl.engine.sample import LogitsEdit, LogitsProcessor, pack
from minisgl.utils.device import to_device

_BANNED = -100.0
"""The bias that is meant as: never."""

_MILDEST, _HARSHEST = 1e-6, 1e6
"""Repetition penalties beyond could make a logit infinite in float32."""


def create_processors(
    device: torch.device, token_pool: Callable[[], torch.Tensor]
) -> list[LogitsProcessor]:
    """All there are, in the order in which they edit.

    A bias comes last, so that no penalty scales it, and a ban holds.

    token_pool: as in `PenaltyProcessor`.
    """
    return [PenaltyProcessor(token_pool), LogitBiasProcessor(device)]


class PenaltyProcessor:
    """Makes tokens that a request has already less likely, or more.

    The host does not know the newest token of a request yet when its next step
    is launched. So what is counted is the token pool, on the device, when the
    step runs. Nothing is kept from one step to the next.

    token_pool: returns int32 [rows, length], the tokens of all requests, each
        in its row from the first on.
    """

    def __init__(self, token_pool: Callable[[], torch.Tensor]) -> None:
        self._token_pool = token_pool

    def __call__(self, batch: Batch) -> LogitsEdit | None:
        """The edit of a batch about to run; None if nobody asks for one."""
        asking = [
            (row, req)
            for row, req in enumerate(batch.reqs)
            if req.sampling_params.has_penalties
        ]
        if not asking:
            return None
        pool = self._token_pool()
        longest = max(req.device_len for _, req in asking)
        numbers = pack([_numbers(row, req) for row, req in asking])
        packed = to_device(numbers, torch.float32, pool.device)
        rows, table = packed[:, :2].long().unbind(1)
        lengths, prompts, *penalties = packed[:, 2:].unsqueeze(-1).unbind(1)

        def edit(logits: torch.Tensor) -> torch.Tensor:
            tokens = pool[table, :longest].long()
            column = torch.arange(longest, device=logits.device)
            known = column < lengths
            made = known & (column >= prompts)
            penalized = _penalize(logits[rows], tokens, known, made, *penalties)
            logits[rows] = penalized
            return logits

        return edit


def _numbers(row: int, req: Req) -> tuple[float, ...]:
    params = req.sampling_params
    return (
        row,
        req.table_idx,
        req.device_len,
        req.max_device_len - req.output_len,
        min(max(params.repetition_penalty, _MILDEST), _HARSHEST),
        params.frequency_penalty,
        params.presence_penalty,
    )


def _penalize(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    known: torch.Tensor,
    made: torch.Tensor,
    repetition: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> torch.Tensor:
    """The logits, float32 [n, vocab], of n requests with up to L tokens each.

    tokens: int64 [n, L]; known and made: bool [n, L], which of them count as
    seen, and as part of the answer. The penalties are float32 [n, 1].

    First repetition, as in CTRL (Keskar et al. 2019, section 4.1): the logits
    of tokens seen are divided by it, or multiplied where they are negative.
    Then frequency is taken off for every time a token is in the answer, and
    presence once if it is (as the documentation of OpenAI's API says).
    """
    none = torch.zeros_like(logits)
    seen = none.scatter_add(1, tokens, known.float()) > 0
    times = none.scatter_add(1, tokens, made.float())
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, repeated, logits)
    return logits - times * frequency - (times > 0) * presence


class LogitBiasProcessor:
    """Adds to logits what a request wants added; -100 bans a token."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Read once a request: 300 texts to numbers take longer than a step.
        self._entries: WeakKeyDictionary[Req, torch.Tensor]
        self._entries = WeakKeyDictionary()

    def __call__(self, batch: Batch) -> LogitsEdit | None:
        """The edit of a batch about to run; None if nobody asks for one."""
        parts = []
        for row, req in enumerate(batch.reqs):
            if req.sampling_params.logit_bias:
                entries = self._entries_of(req)
                rows = torch.full_like(entries[:1], row)
                parts.append(torch.cat([rows, entries]))
        if not parts:
            return None
        packed = to_device(torch.cat(parts, 1), torch.float32, self._device)
        rows, ids = packed[:2].long()
        bias = packed[2]

        def edit(logits: torch.Tensor) -> torch.Tensor:
            logits[rows, ids] += bias
            return logits

        return edit

    def _entries_of(self, req: Req) -> torch.Tensor:
        """Token ids and what to add, float32 [2, n] on the host."""
        found = self._entries.get(req)
        if found is None:
            bias = req.sampling_params.logit_bias
            values = [v if v != _BANNED else -math.inf for v in bias.values()]
            ids = [float(token) for token in bias]
            found = self._entries[req] = torch.tensor([ids, values])
        return found
