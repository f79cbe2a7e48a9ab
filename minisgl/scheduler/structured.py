"""A scheduler whose requests may ask for answers of a given form."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, wait

import torch
import torch.distributed as dist

from minisgl.engine import FAILED_TOKEN
from minisgl.engine.constrain import GrammarParams, GrammarProcessor
from minisgl.message import DetokenizeMsg, UserMsg
from minisgl.scheduler.config import SchedulerConfig
from minisgl.scheduler.scheduler import ForwardData, ForwardInput, Scheduler
from minisgl.scheduler.utils import PendingReq
from minisgl.structure.compile import GrammarStore

_PATIENCE = 0.002
"""Seconds for which an idle scheduler waits for a grammar, deaf to messages."""


class StructuredScheduler(Scheduler):
    """Lets requests wait until their grammar is compiled; others overtake them.

    Every rank compiles for itself. When a grammar is ready is rank 0's word, for
    all ranks must take a request in before the same step.
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
                self._compiling.append(pending)

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
        ready = self._ready()
        waiting, self._compiling = self._compiling, []
        for pending, is_ready in zip(waiting, ready, strict=True):
            if not is_ready:
                self._compiling.append(pending)
            elif self._is_here(pending.uid):  # else it was aborted
                self._finish(pending)

    def _ready(self) -> list[bool]:
        """Whose grammar rank 0 has; all ranks get the same answer."""
        futures = [p.grammar for p in self._compiling if p.grammar is not None]
        queue = len(self.prefill_manager.pending_list)
        if not self.decode_manager.runnable and queue <= len(futures):
            wait(futures, _PATIENCE, FIRST_COMPLETED)
        done = torch.tensor([int(future.done()) for future in futures])
        if self._ranks > 1:
            dist.broadcast(done, group=self.tp_cpu_group, group_src=0)
        return [bool(is_done) for is_done in done.tolist()]

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
