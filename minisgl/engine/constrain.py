"""Answers of a given form: tokens that would break it cannot be chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from weakref import WeakKeyDictionary

import torch

from minisgl.core import Batch, Req, SamplingParams
from minisgl.engine.sample import LogitsEdit
from minisgl.structure.compile import CompiledGrammar
from minisgl.utils.device import (
    Event,
    Stream,
    new_event,
    new_stream,
    to_device,
    to_host,
    use_stream,
    wait_for_current,
)


@dataclass
class GrammarParams(SamplingParams):
    """The wishes of a request, with the grammar that was made of its form."""

    compiled: CompiledGrammar | None = None

    @staticmethod
    def of(params: SamplingParams, compiled: CompiledGrammar) -> GrammarParams:
        own = {f.name: getattr(params, f.name) for f in fields(params)}
        return GrammarParams(**own, compiled=compiled)


class GrammarRow:
    """How far one answer has come in its grammar.

    end_bits: int32 [words], the mask in which only end tokens are allowed.
    """

    def __init__(
        self, compiled: CompiledGrammar, end_bits: torch.Tensor
    ) -> None:
        import xgrammar as xgr

        self._matcher = xgr.GrammarMatcher(compiled)
        self._end_bits = end_bits
        self._over = False

    def accept(self, token: int) -> None:
        """Go on by one token.

        After an end token the row is over, and also after a token that no mask
        had allowed: that of a row which has failed.
        """
        if not self._over:
            accepted = self._matcher.accept_token(token)
            self._over = not accepted or self._matcher.is_terminated()

    def fill(self, masks: torch.Tensor, place: int) -> None:
        """Write what may follow into row `place` of int32 [n, words].

        What is over may only end again: it is in flight once more, or the
        request ignores end tokens.
        """
        if self._over:
            masks[place] = self._end_bits
        else:
            self._matcher.fill_next_token_bitmask(masks, place)

    def is_stuck(self) -> bool:
        """Whether the grammar goes on, but no token does."""
        if self._matcher.is_terminated():
            return False
        mask = torch.zeros_like(self._end_bits).unsqueeze(0)
        self._matcher.fill_next_token_bitmask(mask, 0)
        return not bool(mask.any())


@dataclass
class _LastTokens:
    """The newest tokens of some rows, under way to the host.

    first: of which rows it belongs to the prompt.
    """

    on_host: torch.Tensor
    event: Event
    first: list[bool]

    def wait(self) -> list[int | None]:
        """Each, or None where it is part of the prompt."""
        self.event.synchronize()
        tokens = self.on_host.tolist()
        pairs = zip(tokens, self.first, strict=True)
        return [None if first else token for token, first in pairs]


class GrammarProcessor:
    """Keeps answers to their grammars.

    The mask of a step needs the token of the step before, which the host does
    not know yet when it launches. So the edit waits for it: by then the model's
    part of this step is launched, and the device computes it while the host
    makes the masks. Steps in which nobody asks for a form wait for nothing.

    token_pool: returns int32 [rows, length], the tokens of all requests.
    stream: where steps run.
    end_tokens: of the model.
    """

    def __init__(
        self,
        token_pool: Callable[[], torch.Tensor],
        stream: Stream,
        device: torch.device,
        vocab_size: int,
        end_tokens: Collection[int],
    ) -> None:
        self._token_pool, self._stream, self._device = (
            token_pool,
            stream,
            device,
        )
        # Beside the stream of steps, or the copy would wait for this step.
        self._side = new_stream(device)
        bits = torch.zeros(-(-vocab_size // 32) * 32, dtype=torch.bool)
        bits[[token for token in end_tokens if token < vocab_size]] = True
        self._end_bits = _pack(bits)
        self._rows: WeakKeyDictionary[Req, GrammarRow] = WeakKeyDictionary()

    def __call__(self, batch: Batch) -> LogitsEdit | None:
        """The edit of a batch about to run; None if nobody asks for one."""
        asking: list[tuple[int, Req, GrammarRow]] = []
        for place, req in enumerate(batch.reqs):
            params = req.sampling_params
            # The token after a part of a prompt is nobody's.
            if isinstance(params, GrammarParams) and req.can_decode:
                asking.append((place, req, self._row_of(req, params)))
        if not asking:
            return None
        last = self._fetch([req for _, req, _ in asking])
        rows = [row for *_, row in asking]
        places = to_device(
            [place for place, *_ in asking], torch.int64, self._device
        )

        def edit(logits: torch.Tensor) -> torch.Tensor:
            masks = self._end_bits.expand(len(rows), -1).clone()
            for i, (row, token) in enumerate(
                zip(rows, last.wait(), strict=True)
            ):
                if token is not None:
                    row.accept(token)
                row.fill(masks, i)
            packed = to_device(masks, torch.int32, self._device)
            logits[places] = mask_logits(logits[places], packed)
            return logits

        return edit

    def is_stuck(self, req: Req) -> bool:
        """Whether that is why a request got no token."""
        row = self._rows.get(req)
        return row is not None and row.is_stuck()

    def _row_of(self, req: Req, params: GrammarParams) -> GrammarRow:
        found = self._rows.get(req)
        if found is None:
            assert params.compiled is not None
            found = GrammarRow(params.compiled, self._end_bits)
            self._rows[req] = found
        return found

    def _fetch(self, reqs: list[Req]) -> _LastTokens:
        """Copy the newest tokens as soon as the step before has made them."""
        first = [r.device_len == r.max_device_len - r.output_len for r in reqs]
        table = [req.table_idx for req in reqs]
        newest = [req.device_len - 1 for req in reqs]
        with use_stream(self._stream):
            wait_for_current(self._side)
        with use_stream(self._side):
            rows, columns = to_device(
                torch.tensor([table, newest]), torch.int64, self._device
            )
            on_host = to_host(self._token_pool()[rows, columns])
            event = new_event(self._device)
            event.record()
        return _LastTokens(on_host, event, first)


def mask_logits(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """The logits [n, vocab] with -inf where the bit of a token is 0.

    masks: int32 [n, words], on the same device; bit b of word w is token
    32 * w + b. Where bans have left none of the allowed tokens, all of them are
    equally likely: the form goes before a ban. NaN stays, so that its row fails.
    """
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (masks.unsqueeze(-1) >> bits) & 1
    allowed = allowed.flatten(1)[:, : logits.shape[1]].bool()
    kept = logits.masked_fill(~allowed, -math.inf)
    none = kept.amax(-1, keepdim=True) == -math.inf
    return torch.where(none & allowed, 0.0, kept)


def _pack(bits: torch.Tensor) -> torch.Tensor:
    """bool [32 * words] as int32 [words], the first bit the lowest."""
    weights = torch.ones((), dtype=torch.int64) << torch.arange(32)
    words = (bits.view(-1, 32).long() * weights).sum(-1)
    return words.to(torch.int32)
