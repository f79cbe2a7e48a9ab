"""Continuous batching: before every step, decide anew who is in it."""

from __future__ import annotations

from typing import NamedTuple

import torch

from minisgl.core import Batch, Req
from minisgl.engine import (
    FAILED_TOKEN,
    BatchSamplingArgs,
    Engine,
    ForwardOutput,
)
from minisgl.message import (
    AbortBackendMsg,
    BaseBackendMsg,
    DetokenizeMsg,
    ExitMsg,
    UserMsg,
)
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.config import SchedulerConfig
from minisgl.scheduler.decode import DecodeManager
from minisgl.scheduler.inputs import Indice2D, make_inputs
from minisgl.scheduler.io import SchedulerIOMixin
from minisgl.scheduler.prefill import PrefillManager
from minisgl.scheduler.table import TableManager
from minisgl.scheduler.utils import fit_request
from minisgl.utils import init_logger, load_eos_token_ids

logger = init_logger(__name__)


class ForwardInput(NamedTuple):
    """A batch ready to run; where its tokens are, and where new ones go."""

    batch: Batch
    sample_args: BatchSamplingArgs
    input_tuple: Indice2D
    write_tuple: Indice2D


class Scheduler(SchedulerIOMixin):
    """Owns the engine and everything a request holds while it runs."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__()
        self.config = config
        self.engine = Engine(config)
        self.table_manager = TableManager(
            config.max_running_req, self.engine.page_table
        )
        self.cache_manager = CacheManager(
            self.engine.num_pages, config.page_size, self.engine.page_table
        )
        self.decode_manager = DecodeManager(config.page_size)
        self.prefill_manager = PrefillManager(
            self.cache_manager, self.table_manager, self.decode_manager
        )
        self.eos_token_ids = load_eos_token_ids(config.model_path)
        self.stopped = False

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.prefill_manager.runnable or self.decode_manager.runnable

    @torch.inference_mode()
    def run_forever(self) -> None:
        """Step after step, until somebody says ExitMsg."""
        while not self.stopped:
            self.normal_loop()

    def normal_loop(self) -> None:
        """One step: take messages, run a batch, deal with its tokens."""
        for msg in self.receive_msg(blocking=not self.has_work):
            self._process_one_msg(msg)
        forward_input = self._schedule_next_batch()
        if forward_input is not None:
            output = self._forward(forward_input)
            self._process_last_data(forward_input.batch, output)

    def _process_one_msg(self, msg: BaseBackendMsg) -> None:
        match msg:
            case ExitMsg():
                self.stopped = True
            case UserMsg():
                self._admit(msg)
            case AbortBackendMsg(uid=uid):
                self.prefill_manager.abort_req(uid)
                if (req := self.decode_manager.abort_req(uid)) is not None:
                    self._free_req_resources(req)
            case _:
                logger.warning(f"ignored, for it is no message: {msg!r}")

    def _is_here(self, uid: int) -> bool:
        waiting = (req.uid for req in self.prefill_manager.pending_list)
        return uid in self.decode_manager.running_reqs or uid in waiting

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
        except ValueError as error:
            failed = (FAILED_TOKEN, True, "error", str(error))
            self.send_result([DetokenizeMsg(msg.uid, *failed)])
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
        tuples = make_inputs(batch, self.table_manager.page_table)
        self.engine.attn_backend.prepare_metadata(batch)
        sample_args = self.engine.sampler.prepare(batch)
        return ForwardInput(batch, sample_args, *tuples)

    def _forward(self, forward_input: ForwardInput) -> ForwardOutput:
        batch, sample_args, input_tuple, write_tuple = forward_input
        token_pool = self.table_manager.token_pool
        batch.input_ids = token_pool[input_tuple]
        output = self.engine.forward_batch(batch, sample_args)
        token_pool[write_tuple] = output.next_tokens_gpu
        self.decode_manager.filter_reqs(batch.reqs)
        return output

    def _process_last_data(self, batch: Batch, output: ForwardOutput) -> None:
        """Read the tokens of a step and pass them on."""
        output.copy_done_event.synchronize()
        tokens = output.next_tokens_cpu
        pairs = zip(batch.reqs, tokens, strict=True)
        replies = [self._process_token(req, token) for req, token in pairs]
        for req, reply in zip(batch.reqs, replies, strict=True):
            if batch.is_prefill and not reply.finished:
                self.cache_manager.cache_req(req, finished=False)
        self.send_result(replies)

    def _process_token(self, req: Req, token: torch.Tensor) -> DetokenizeMsg:
        """What the new token, int32 [], means for its request."""
        next_token = int(token)
        if next_token == FAILED_TOKEN:
            self._free_req_resources(req, failed=True)
            error = "the model's logits are not finite numbers"
            return DetokenizeMsg(req.uid, next_token, True, "error", error)
        req.append_host(token.view(1))
        params = req.sampling_params
        stop = next_token in self.eos_token_ids and not params.ignore_eos
        if not stop and req.can_decode:
            return DetokenizeMsg(req.uid, next_token, False)
        self._free_req_resources(req)
        reason = "stop" if stop else "length"
        return DetokenizeMsg(req.uid, next_token, True, reason)

    def _free_req_resources(self, req: Req, failed: bool = False) -> None:
        """Give back what a request holds; a failed one's pages are suspect."""
        self.decode_manager.remove_req(req)
        if failed:
            self.cache_manager.drop_req(req)
        else:
            self.cache_manager.cache_req(req, finished=True)
        self.table_manager.free(req.table_idx)
