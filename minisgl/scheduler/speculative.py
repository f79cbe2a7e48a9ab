"""Several tokens a step: a drafter guesses, the model checks all at once."""

from __future__ import annotations

import random

import torch

from minisgl.core import Batch, Req
from minisgl.engine import FAILED_TOKEN, ForwardOutput
from minisgl.message import DetokenizeMsg
from minisgl.scheduler.config import SchedulerConfig
from minisgl.scheduler.drafts import Draft
from minisgl.scheduler.guessing import create_drafter
from minisgl.scheduler.inputs import make_inputs
from minisgl.scheduler.replies import NOT_FINITE
from minisgl.scheduler.scheduler import ForwardData, ForwardInput
from minisgl.scheduler.structured import StructuredScheduler
from minisgl.scheduler.verify import (
    Span,
    VerifyBatch,
    count_right,
    reject_drafts,
    trim,
)
from minisgl.utils.device import to_device


class SpeculativeScheduler(StructuredScheduler):
    """A scheduler whose decode steps check drafts, if the settings say so.

    Which drafts were right is known when their step is over, and the next ones
    begin where these end. So a batch is not launched before the tokens of the
    last one are read, as long as requests run that are guessed for. Without a
    drafter this is the scheduler that it inherits from.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        # Before the engine, which takes what memory is left.
        self.drafter = create_drafter(config)
        self._random = random.Random()
        super().__init__(config)

    def _reset(self) -> None:
        if self.drafter is not None:
            self.drafter.reset()
        super()._reset()

    def run_when_idle(self) -> None:
        """A draft model has books of its own."""
        self.idle_check.run(self._check_books)

    def _check_books(self) -> None:
        self.cache_manager.check_integrity()
        if self.drafter is not None:
            self.drafter.check_integrity()

    def step(self, data: ForwardData | None) -> ForwardData | None:
        running = self.decode_manager.running_reqs.values()
        if any(self._is_guessed_for(req) for req in running):
            self._process_last_data(data)
            data = None
        return super().step(data)

    def _is_guessed_for(self, req: Req) -> bool:
        # What a form allows after a draft is not known before it is right.
        params = req.sampling_params
        guesses = self.drafter is not None and params.speculate
        return guesses and params.form is None

    def _prepare_batch(self, batch: Batch) -> ForwardInput:
        drafts = self._propose(batch.reqs) if batch.is_decode else {}
        if not drafts:
            return super()._prepare_batch(batch)
        # Those that compute equally many tokens are computed together.
        nothing = Draft([])
        count = {
            req: len(drafts.get(req, nothing).tokens) for req in batch.reqs
        }
        reqs = sorted(batch.reqs, key=count.__getitem__)
        asked = [drafts.get(req, nothing) for req in reqs]
        return self._prepare_verify(VerifyBatch.of(reqs, asked))

    def _propose(self, reqs: list[Req]) -> dict[Req, Draft]:
        """The drafts for a batch, without the empty ones."""
        reqs = [req for req in reqs if self._is_guessed_for(req)]
        if self.drafter is None or not reqs:
            return {}
        # After the last draft comes a token of the model itself.
        most = self.config.speculative_tokens
        limits = [min(most, req.remain_len - 1) for req in reqs]
        found = zip(reqs, self.drafter.propose(reqs, limits), strict=True)
        return {req: draft for req, draft in found if draft.tokens}

    def _prepare_verify(self, batch: VerifyBatch) -> ForwardInput:
        engine, pool = self.engine, self.table_manager.token_pool
        self.cache_manager.allocate_paged(batch.whole.reqs)
        engine.graph_runner.pad_batch(batch)
        tuples = make_inputs(batch, self.table_manager.page_table)
        places = torch.tensor(batch.draft_places())
        rows, columns, drafts = to_device(places, torch.int64, pool.device)
        pool[rows, columns] = drafts.to(torch.int32)
        if engine.graph_runner.can_use_cuda_graph(batch):
            # What is recorded has one token a request, and so has a row.
            batch.run = batch
        run, whole = batch.run, batch.whole
        whole.positions, whole.out_loc = batch.positions, batch.out_loc
        engine.attn_backend.prepare_metadata(run)
        run.attn_metadata.every_token = run is whole
        args = engine.sampler.prepare(batch)
        size, device = engine.sampler.vocab_size, engine.device
        judging = reject_drafts(batch, size, device, self._random)
        if judging is not None:
            args.edits.append(judging)
        last_steps = [row.remain_len == 1 for row in batch.reqs]
        return ForwardInput(batch, args, *tuples, last_steps)

    def _forward(self, forward_input: ForwardInput) -> ForwardOutput:
        batch, pool = forward_input.batch, self.table_manager.token_pool
        if not isinstance(batch, VerifyBatch):
            return super()._forward(forward_input)
        batch.run.input_ids = pool[forward_input.input_tuple]
        args = forward_input.sample_args
        output = self.engine.forward_batch(batch.run, args)
        # What follows a wrong draft goes where nobody reads any more.
        pool[forward_input.write_tuple] = output.next_tokens_gpu
        output.copy_done_event.record()
        return output

    def _process_last_data(self, last_data: ForwardData | None) -> None:
        batch = last_data.forward_input.batch if last_data else None
        if last_data is None or not isinstance(batch, VerifyBatch):
            return super()._process_last_data(last_data)
        last_data.output.copy_done_event.synchronize()
        # Nothing has ended since the launch: the next thing done was this.
        self.inflight.retire(batch)
        replies = []
        with self.cache_manager.lazy_free_region():
            for span in batch.spans:
                replies += self._process_span(last_data, span)
        self.send_result(replies)

    def _process_span(
        self, data: ForwardData, span: Span
    ) -> list[DetokenizeMsg]:
        """The tokens that a request has gained, up to its end; the rest goes."""
        req, drafts = span.req, span.draft.tokens
        rows = slice(span.first, span.first + len(drafts) + 1)
        on_host = data.output.next_tokens_cpu[rows]
        choices = on_host.tolist()
        right = count_right(drafts, choices)
        replies: list[DetokenizeMsg] = []
        failed = ended = False
        for i, token in enumerate(choices[: right + 1]):
            if failed := token == FAILED_TOKEN:
                break
            req.append_host(on_host[i : i + 1])
            ends, row = self.eos_token_ids, span.first + i
            replies.append(self.replies.token(data, row, token, ends))
            if ended := replies[-1].finished:
                break
        req.cached_len = span.cached + len(replies)
        req.device_len = req.cached_len + 1
        trim(self.cache_manager, req, span.held)
        if drafts and replies:
            accepted = min(right, len(replies))
            replies[-1].accepted_tokens = accepted
            replies[-1].rejected_tokens = len(drafts) - accepted
        if failed:
            replies.append(self.replies.failure(req.uid, "error", NOT_FINITE))
        if failed or ended:
            self._free_req_resources(req, failed)
        return replies

    def _give_back(self, req: Req, failed: bool) -> None:
        if self.drafter is not None:
            self.drafter.forget(req)
        super()._give_back(req, failed)
