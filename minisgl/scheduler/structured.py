"""A scheduler whose requests may ask for answers of a given form."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, wait

import torch
import torch.distributed as dist

from minisgl.engine import FAILED_TOKEN
from minisgl.engine.constrain import GrammarParams, GrammarProcessor
from minisgl.message import (
    AbortBackendMsg,
    BaseBackendMsg,
    DetokenizeMsg,
    UserMsg,
)
from minisgl.scheduler.config import SchedulerConfig
from minisgl.scheduler.scheduler import ForwardData, ForwardInput, Scheduler
from minisgl.scheduler.utils import PendingReq
from minisgl.structure.compile import GrammarStore

_PATIENCE = 0.002
"""Seconds for which an idle scheduler waits for a grammar, deaf to messages."""

_LIMIT = 30.0
"""Seconds that a request waits for its grammar, at most."""

_WAITS, _READY, _SLOW, _BUSY = range(4)
"""What rank 0 says of a grammar. Of the two for which it is too late, one is
being compiled, and for the other no thread was free."""


class StructuredScheduler(Scheduler):
    """Lets requests wait until their grammar is compiled; others overtake them.

    Every rank compiles for itself. When a grammar is ready, or comes too late, is
    rank 0's word, for all ranks must take a request in before the same step.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        engine = self.engine
        vocab_size = engine.sampler.vocab_size
        self.grammars = GrammarStore(
            config.model_path, vocab_size, self.eos_token_ids
        )
        self.processor = GrammarProcessor(
            lambda: self.table_manager.token_pool,
            engine.stream,
            engine.device,
            vocab_size,
            self.eos_token_ids,
        )
        # After penalties and bans: what is left must be of the form.
        engine.sampler.processors.append(self.processor)

    def _reset(self) -> None:
        super()._reset()
        self._compiling: list[PendingReq] = []

    def _admit(self, msg: UserMsg) -> None:
        queue = self.prefill_manager.pending_list
        before = len(queue)
        super()._admit(msg)
        for pending in queue[before:]:  # none, if it was refused
            if (form := pending.sampling_params.form) is not None:
                pending.grammar = self.grammars.compile(form)
                pending.deadline = time.monotonic() + _LIMIT
                self._compiling.append(pending)

    def _process_one_msg(self, msg: BaseBackendMsg) -> None:
        super()._process_one_msg(msg)
        if isinstance(msg, AbortBackendMsg):
            gone = [p for p in self._compiling if p.uid == msg.uid]
            self._compiling = [p for p in self._compiling if p.uid != msg.uid]
            self._let_go(gone)

    def _schedule_next_batch(self) -> ForwardInput | None:
        if self._compiling:
            self._take_in()
        return super()._schedule_next_batch()

    def _process_row(
        self, data: ForwardData, row: int, token: int
    ) -> list[DetokenizeMsg]:
        replies = super()._process_row(data, row, token)
        if token == FAILED_TOKEN:
            req = data.forward_input.batch.reqs[row]
            form = req.sampling_params.form
            if form is not None and self.processor.is_stuck(req):
                text = f"{form[0]}: none of this model's tokens can follow here"
                replies = [self.replies.failure(req.uid, "refused", text)]
        return replies

    def _take_in(self) -> None:
        """Let those run whose grammar is ready; refuse those that get none."""
        words = self._words()
        found = list(zip(self._compiling, words, strict=True))
        self._compiling = [p for p, word in found if word == _WAITS]
        for pending, word in found:
            if word == _READY:
                self._finish(pending)
            elif word != _WAITS:
                self._give_up(pending, word)

    def _words(self) -> list[int]:
        """What rank 0 says of each grammar; all ranks get the same answer."""
        futures = [p.grammar for p in self._compiling if p.grammar is not None]
        queue = len(self.prefill_manager.pending_list)
        if not self.decode_manager.runnable and queue <= len(futures):
            wait(futures, _PATIENCE, FIRST_COMPLETED)
        words = torch.tensor([_word_for(p) for p in self._compiling])
        if self._ranks > 1:
            dist.broadcast(words, group=self.tp_cpu_group, group_src=0)
        found: list[int] = words.tolist()
        return found

    def _finish(self, pending: PendingReq) -> None:
        """Hand a request its grammar, or tell its client why there is none."""
        assert pending.grammar is not None
        try:
            # Rank 0 has it; another rank may have to wait for its own.
            compiled = pending.grammar.result()
        except Exception as error:
            self.prefill_manager.abort_req(pending.uid)
            refused = isinstance(error, ValueError)
            end = ("refused", str(error))
            if not refused:
                end = ("error", f"{type(error).__name__}: {error}")
            self.send_result([self.replies.failure(pending.uid, *end)])
        else:
            params = GrammarParams.of(pending.sampling_params, compiled)
            pending.sampling_params, pending.grammar = params, None

    def _give_up(self, pending: PendingReq, word: int) -> None:
        """Tell a client that its grammar takes too long; others run on."""
        assert pending.sampling_params.form is not None
        name = pending.sampling_params.form[0]
        end = (
            "refused",
            f"{name}: this takes longer than {_LIMIT:g} seconds to prepare; "
            "simplify it",
        )
        if word == _BUSY:
            end = (
                "error",
                f"{name}: other requests' forms have kept this one waiting for "
                f"{_LIMIT:g} seconds; try again later",
            )
        self.prefill_manager.abort_req(pending.uid)
        self._let_go([pending])
        self.send_result([self.replies.failure(pending.uid, *end)])

    def _let_go(self, gone: list[PendingReq]) -> None:
        """Take what nobody waits for any more out of the compiler's queue.

        What is being compiled goes on: it cannot be stopped, and may be of use
        to a later request.
        """
        wanted = [pending.grammar for pending in self._compiling]
        for pending in gone:
            if pending.grammar is not None and pending.grammar not in wanted:
                pending.grammar.cancel()


def _word_for(pending: PendingReq) -> int:
    assert pending.grammar is not None
    if pending.grammar.done():
        return _READY
    if time.monotonic() < pending.deadline:
        return _WAITS
    return _SLOW if pending.grammar.running() else _BUSY
