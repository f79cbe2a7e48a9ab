"""Continuous batching: before every step, decide anew who is in it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from minisgl.core import Batch, Req, set_global_ctx
from minisgl.engine import (
    FAILED_TOKEN,
    BatchSamplingArgs,
    Engine,
    ForwardOutput,
)
from minisgl.engine.processors import create_processors
from minisgl.message import (
    SHUTTING_DOWN,
    AbortBackendMsg,
    BaseBackendMsg,
    BatchBackendMsg,
    DetokenizeMsg,
    ExitMsg,
    StatusBackendMsg,
    UserMsg,
)
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.config import SchedulerConfig
from minisgl.scheduler.decode import DecodeManager
from minisgl.scheduler.idle import IdleCheck
from minisgl.scheduler.inflight import InflightRows
from minisgl.scheduler.inputs import Indice2D, make_inputs
from minisgl.scheduler.io import SchedulerIOMixin
from minisgl.scheduler.prefill import ChunkedReq, PrefillManager
from minisgl.scheduler.replies import NOT_FINITE, ReplyMaker
from minisgl.scheduler.table import TableManager
from minisgl.scheduler.utils import fit_request
from minisgl.utils import init_logger, load_eos_token_ids
from minisgl.utils.device import use_stream, wait_for_current

logger = init_logger(__name__)


class ForwardInput(NamedTuple):
    """A batch ready to run; where its tokens are in the pool, and new ones go.

    last_steps: for each request whether this step makes its last token. Noted
        here because its counters have moved on when the token is read.
    """

    batch: Batch
    sample_args: BatchSamplingArgs
    input_tuple: Indice2D
    write_tuple: Indice2D
    last_steps: list[bool]


class ForwardData(NamedTuple):
    """A batch in flight."""

    forward_input: ForwardInput
    output: ForwardOutput


class Scheduler(SchedulerIOMixin):
    """Owns the engine and everything a request holds while it runs."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.engine = Engine(config)
        self._reset()
        self.replies = ReplyMaker()
        self.engine.sampler.processors += create_processors(
            self.engine.device, lambda: self.table_manager.token_pool
        )
        self.eos_token_ids = load_eos_token_ids(config.model_path)
        self.stopped = False
        self.idle_check = IdleCheck()
        super().__init__(config, self.engine.tp_cpu_group)

    def _reset(self) -> None:
        """Forget every request and every cached prefix, in whatever state."""
        # A batch in flight must not write into what is given out anew.
        self.engine.stream.synchronize()
        # The prefix cache takes its page size from here.
        set_global_ctx(self.engine.ctx)
        config = self.config
        self.table_manager = TableManager(
            config.max_running_req, self.engine.page_table
        )
        self.cache_manager = CacheManager(
            self.engine.num_pages,
            config.page_size,
            self.engine.page_table,
            config.cache_type,
        )
        self.decode_manager = DecodeManager(config.page_size)
        self.prefill_manager = PrefillManager(
            self.cache_manager,
            self.table_manager,
            self.decode_manager,
            prefills_in_a_row=config.prefills_in_a_row,
        )
        self.inflight = InflightRows()

    @property
    def has_work(self) -> bool:
        """Whether there is something to launch."""
        return self.prefill_manager.runnable or self.decode_manager.runnable

    def run_when_idle(self) -> None:
        """Look for lost pages; that is logged and nothing more."""
        self.idle_check.run(self.cache_manager.check_integrity)

    @torch.inference_mode()
    def run_forever(self) -> None:
        """Step after step, until somebody says ExitMsg.

        The step in which it comes is the last one. Requests that are not done
        by then end with an error.
        """
        data: ForwardData | None = None
        while not self.stopped:
            data = self.step(data)
        self._process_last_data(data)
        waiting = [req.uid for req in self.prefill_manager.pending_list]
        uids = [*waiting, *self.decode_manager.running_reqs]
        end = ("error", SHUTTING_DOWN)
        self.send_result([self.replies.failure(uid, *end) for uid in uids])

    def shutdown(self) -> None:
        """Wait for the device and for all ranks, then close the queues."""
        self.engine.stream.synchronize()
        self.sync_all_ranks()
        self.close_queues()

    def step(self, data: ForwardData | None) -> ForwardData | None:
        """One turn of the loop; takes and returns the batch in flight."""
        if self.config.overlap:
            return self.overlap_loop(data)
        self.normal_loop()
        return None

    def overlap_loop(self, last_data: ForwardData | None) -> ForwardData | None:
        """Launch the next batch, then deal with the tokens of the last one.

        While the host reads, frees and replies, the device computes. The price:
        a batch is chosen before the tokens of the one before it are known.
        """
        self._process_messages(blocking=last_data is None and not self.has_work)
        ongoing = self._launch(self._schedule_next_batch())
        self._process_last_data(last_data)
        return ongoing

    def normal_loop(self) -> None:
        """Launch a batch, wait for its tokens, deal with them."""
        self._process_messages(blocking=not self.has_work)
        self._process_last_data(self._launch(self._schedule_next_batch()))

    def _process_messages(self, blocking: bool) -> None:
        for msg in self.receive_msg(blocking):
            self._process_one_msg(msg)

    def _process_one_msg(self, msg: BaseBackendMsg) -> None:
        match msg:
            case BatchBackendMsg(data=messages):
                for one in messages:
                    self._process_one_msg(one)
            case ExitMsg():
                self.stopped = True
            case UserMsg():
                self._admit(msg)
            case StatusBackendMsg(uid=uid):
                self.send_result([self.replies.status(uid, self)])
            case AbortBackendMsg(uid=uid):
                if self._is_here(uid):
                    self.send_result(self.replies.abort(uid, self.config))
                chunk = self.prefill_manager.abort_req(uid)
                req = chunk or self.inflight.find(uid)
                req = req or self.decode_manager.abort_req(uid)
                if req is not None:
                    self._free_req_resources(req)
            case _:
                logger.warning(f"ignored, for it is no message: {msg!r}")

    def _is_here(self, uid: int) -> bool:
        waiting = (req.uid for req in self.prefill_manager.pending_list)
        return (
            uid in self.decode_manager.running_reqs
            or uid in waiting
            or self.inflight.find(uid) is not None
        )

    def _admit(self, msg: UserMsg) -> None:
        """Queue a request, or refuse at once one that can never run."""
        if self._is_here(msg.uid):
            # An answer would end the first request of that number.
            logger.warning(f"request {msg.uid} is here already; ignored")
            return
        pool = self.engine.num_pages * self.config.page_size
        limits = self.engine.max_seq_len, pool, self.engine.sampler.vocab_size
        try:
            msg = fit_request(msg, *limits)
            msg.sampling_params.check_tokens(limits[-1])
        except ValueError as error:
            reply = self.replies.failure(msg.uid, "refused", str(error))
            self.send_result([reply])
        else:
            self.prefill_manager.add_one_req(msg)

    def _schedule_next_batch(self) -> ForwardInput | None:
        """Prompts before decodes: who waits for a first token waits most."""
        budget = self.config.max_extend_tokens
        batch = self.prefill_manager.schedule_next_batch(budget)
        batch = batch or self.decode_manager.schedule_next_batch()
        return None if batch is None else self._prepare_batch(batch)

    def _prepare_batch(self, batch: Batch) -> ForwardInput:
        self.cache_manager.allocate_paged(batch.reqs)
        self.engine.graph_runner.pad_batch(batch)
        tuples = make_inputs(batch, self.table_manager.page_table)
        self.engine.attn_backend.prepare_metadata(batch)
        sample_args = self.engine.sampler.prepare(batch)
        last_steps = [req.remain_len == 1 for req in batch.reqs]
        return ForwardInput(batch, sample_args, *tuples, last_steps)

    def _launch(self, forward_input: ForwardInput | None) -> ForwardData | None:
        if forward_input is None:
            return None
        # The inputs were made on the current stream; they come first.
        wait_for_current(self.engine.stream)
        with use_stream(self.engine.stream):
            output = self._forward(forward_input)
        self.inflight.launch(forward_input.batch)
        return ForwardData(forward_input, output)

    def _forward(self, forward_input: ForwardInput) -> ForwardOutput:
        batch, token_pool = forward_input.batch, self.table_manager.token_pool
        batch.input_ids = token_pool[forward_input.input_tuple]
        output = self.engine.forward_batch(batch, forward_input.sample_args)
        token_pool[forward_input.write_tuple] = output.next_tokens_gpu
        # Later than the engine did: this write, too, needs the rows.
        output.copy_done_event.record()
        self.decode_manager.filter_reqs(batch.reqs)
        return output

    def _process_last_data(self, last_data: ForwardData | None) -> None:
        """Read the tokens of a batch that was in flight and pass them on."""
        if last_data is None:
            return
        batch, output = last_data.forward_input.batch, last_data.output
        output.copy_done_event.synchronize()
        tokens = output.next_tokens_cpu.tolist()
        # Whoever ended since the launch does not want its token any more.
        ended = [self.inflight.is_ending(req) for req in batch.reqs]
        for req, token, over in zip(batch.reqs, tokens, ended, strict=True):
            if over and token == FAILED_TOKEN:
                self.inflight.end(req, failed=True)
        replies = []
        with self.cache_manager.lazy_free_region():
            for req, failed in self.inflight.retire(batch):
                self._give_back(req, failed)
            for row, over in enumerate(ended):
                if not over:
                    replies += self._process_row(last_data, row, tokens[row])
        self.send_result(replies)

    def _process_row(
        self, data: ForwardData, row: int, token: int
    ) -> list[DetokenizeMsg]:
        """What a request's new token means; nothing in the middle of a prompt.

        Runs once for every token there is: a number costs it far less than a
        tensor of one.
        """
        batch = data.forward_input.batch
        req = batch.reqs[row]
        if token == FAILED_TOKEN:
            self.prefill_manager.abort_req(req.uid)
            self._free_req_resources(req, failed=True)
            return [self.replies.failure(req.uid, "error", NOT_FINITE)]
        if isinstance(req, ChunkedReq):
            return []
        req.append_host(data.output.next_tokens_cpu[row : row + 1])
        reply = self.replies.token(data, row, token, self.eos_token_ids)
        if reply.finished:
            self._free_req_resources(req)
        elif batch.is_prefill:
            self.cache_manager.cache_req(req, finished=False)
        return [reply]

    def _free_req_resources(self, req: Req, failed: bool = False) -> None:
        """Give back all a request holds, once no batch in flight uses it."""
        self.decode_manager.remove_req(req)
        if self.inflight.end(req, failed):
            self._give_back(req, failed)

    def _give_back(self, req: Req, failed: bool) -> None:
        """Nobody may reuse what a failed request computed."""
        if failed:
            self.cache_manager.drop_req(req)
        else:
            self.cache_manager.cache_req(req, finished=True)
        self.table_manager.free(req.table_idx)
