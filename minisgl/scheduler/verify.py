"""The batch that checks drafts: a row for every token that may be gained."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from minisgl.core import Batch, Req, SamplingParams
from minisgl.engine.rejection import Limits, rejecting
from minisgl.engine.sample import LogitsEdit
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.drafts import Draft
from minisgl.utils import align_ceil
from minisgl.utils.device import to_device


class Span(NamedTuple):
    """The rows of one request in a batch.

    first: the row of its last known token; those of its drafts follow.
    cached: its `cached_len` before the step.
    """

    req: Req
    first: int
    cached: int
    draft: Draft

    @property
    def held(self) -> int:
        """Tokens for which it has pages during the step."""
        return self.cached + 1 + len(self.draft.tokens)


@dataclass
class VerifyBatch(Batch):
    """A decode batch in which a request has several rows.

    After its last known token the model chooses the next one, after each draft
    the one that follows the draft. For whoever prepares sampling, a row is a
    request that knows just the tokens up to its own: seeds, penalties and log-
    probabilities are then those of a step that makes this one token.

    spans: which rows belong together.
    whole: the same tokens as one request each, which computes all of its own.
    run: what the engine is given, this batch or `whole`.
    """

    spans: list[Span] = field(default_factory=list)
    whole: Batch = field(init=False)
    run: Batch = field(init=False)

    @classmethod
    def of(cls, reqs: Sequence[Req], drafts: Sequence[Draft]) -> VerifyBatch:
        """The batch that checks one draft for each request."""
        rows: list[Req] = []
        spans: list[Span] = []
        for req, draft in zip(reqs, drafts, strict=True):
            span = Span(req, len(rows), req.cached_len, draft)
            spans.append(span)
            rows += _rows_of(span)
        batch = cls(rows, "decode", spans)
        wholes = [_copy(s.req, s.cached, s.held) for s in spans]
        # To attention, several new tokens of a request are a part of a prompt.
        batch.whole = batch.run = Batch(wholes, "prefill")
        return batch

    def draft_places(self) -> tuple[list[int], list[int], list[int]]:
        """Rows and columns of the token pool, and the drafts that go there."""
        rows: list[int] = []
        columns: list[int] = []
        tokens: list[int] = []
        for req, _, cached, draft in self.spans:
            count = len(draft.tokens)
            rows += [req.table_idx] * count
            columns += range(cached + 1, cached + 1 + count)
            tokens += draft.tokens
        return rows, columns, tokens


def _rows_of(span: Span) -> list[Req]:
    """A request that was not guessed for is its own row; else they are copies."""
    req, count = span.req, len(span.draft.tokens)
    if count == 0:
        return [req]
    ends = range(span.cached + 1, span.held + 1)
    rows = [_copy(req, end - 1, end) for end in ends]
    if span.draft.probs is not None:
        # Their logits will be distributions: nothing is left to be done.
        params = replace(
            req.sampling_params, temperature=1.0, top_k=-1, top_p=1.0, min_p=0.0
        )
        for row in rows[:count]:
            row.sampling_params = params
    return rows


def _copy(req: Req, cached: int, length: int) -> Req:
    """The request as if it had computed and known so many tokens."""
    found = copy.copy(req)
    found.cached_len, found.device_len = cached, length
    return found


def reject_drafts(
    batch: VerifyBatch,
    vocab_size: int,
    device: torch.device,
    source: random.Random,
) -> LogitsEdit | None:
    """The edit that judges all drafts which were drawn; None if none was."""
    spans = [span for span in batch.spans if span.draft.probs is not None]
    if not spans:
        return None
    rows: list[int] = []
    tokens: list[int] = []
    params: list[SamplingParams] = []
    probs: list[torch.Tensor] = []
    for req, first, _, draft in spans:
        assert draft.probs is not None
        count = len(draft.tokens)
        rows += range(first, first + count)
        tokens += draft.tokens
        params += [req.sampling_params] * count
        probs.append(draft.probs)
    uniforms = [source.random() for _ in tokens]
    return rejecting(
        to_device(rows, torch.int64, device),
        Limits.of(params, vocab_size, device),
        to_device(tokens, torch.int64, device),
        torch.cat(probs),
        to_device(uniforms, torch.float32, device),
    )


def trim(pages: CacheManager, req: Req, held: int) -> None:
    """Give back the pages past what a request has computed, up to `held` tokens.

    What wrong drafts have left in the page that stays is written over before it
    is read: no request sees past its own length.
    """
    kept = align_ceil(req.cached_len, pages.page_size)
    held = align_ceil(held, pages.page_size)
    if held > kept:
        pages._free(pages.page_table[req.table_idx, kept:held])


def count_right(drafts: Sequence[int], choices: Sequence[int]) -> int:
    """How many drafts come before the first that the model chose otherwise.

    choices: after the last known token, then after each draft. One says
    something only if all drafts before it are right.
    """
    right = 0
    for draft, choice in zip(drafts, choices, strict=False):
        if draft != choice:
            break
        right += 1
    return right
