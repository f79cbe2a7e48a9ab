"""What is said to whoever waits for a request, and how requests end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minisgl.core import SamplingParams
from minisgl.engine import FAILED_TOKEN
from minisgl.message import (
    AbortMsg,
    DetokenizeMsg,
    StatusResultMsg,
    TokenLogprob,
)

if TYPE_CHECKING:
    from minisgl.scheduler.config import SchedulerConfig
    from minisgl.scheduler.scheduler import ForwardData, Scheduler


NOT_FINITE = (
    "the model's logits are not finite numbers; try dtype float32 or another "
    "checkpoint"
)


def finish_reason(
    params: SamplingParams, token: int, last: bool, ends: Collection[int]
) -> str | None:
    """Why a request ends with this token; None if it goes on.

    last: no more tokens were asked for, or fit.
    ends: end tokens of the model.
    """
    is_end = token in ends and not params.ignore_eos
    if is_end or token in params.stop_token_ids:
        return "stop"
    return "length" if last else None


@dataclass
class ReplyMaker:
    """Makes every message about a request; counts those that are over.

    finished: requests that came to their end.
    aborted: requests whose client went before that.
    """

    finished: int = field(default=0, init=False)
    aborted: int = field(default=0, init=False)

    def token(
        self, data: ForwardData, row: int, token: int, ends: Collection[int]
    ) -> DetokenizeMsg:
        """What a batch that came back has to say to one of its requests.

        Ask before the prompt of a request goes into the cache: after that it is
        no longer known how much of it was there.

        ends: end tokens of the model.
        """
        batch, args, *_, last_steps = data.forward_input
        req = batch.reqs[row]
        last = last_steps[row]
        reason = finish_reason(req.sampling_params, token, last, ends)
        self.finished += reason is not None
        msg = DetokenizeMsg(req.uid, token, reason is not None, reason)
        if batch.is_prefill:  # so this is its first token
            msg.prompt_tokens = req.max_device_len - req.output_len
            msg.cached_tokens = req.cache_handle.cached_len
        logprobs = args.logprobs.read(row) if args.logprobs else None
        if logprobs is not None:
            msg.logprobs = TokenLogprob(*logprobs)
        return msg

    def failure(self, uid: int, reason: str, error: str) -> DetokenizeMsg:
        """The end of a request that gets no more tokens.

        reason: `error`, or `refused` if the request itself is at fault.
        """
        return DetokenizeMsg(uid, FAILED_TOKEN, True, reason, error)

    def abort(self, uid: int, config: SchedulerConfig) -> list[AbortMsg]:
        """Count an abort; what has to be sent because of it.

        A detokenizer that is a process of its own has not heard of it and would
        keep the text so far for ever.
        """
        self.aborted += 1
        own_process = config.backend_create_detokenizer_link
        return (
            [AbortMsg(uid)] if own_process and not config.offline_mode else []
        )

    def status(self, uid: int, scheduler: Scheduler) -> StatusResultMsg:
        """How a scheduler is."""
        return StatusResultMsg(uid, _numbers(scheduler))


def _numbers(scheduler: Scheduler) -> dict[str, int]:
    """What `StatusReply` lists.

    A request runs as long as it holds a row. One whose client has just gone may
    hold it until the batch that has it comes back.
    """
    rows, pages = scheduler.table_manager, scheduler.cache_manager
    queue = scheduler.prefill_manager.pending_list
    cached = pages.prefix_cache.size_info.total_size
    return {
        "running": scheduler.config.max_running_req - rows.available_size,
        "waiting": sum(pending.chunked_req is None for pending in queue),
        "free_pages": len(pages.free_pages),
        "cached_pages": cached // pages.page_size,
        "total_pages": pages.num_pages,
        "aborted": scheduler.replies.aborted,
        "finished": scheduler.replies.finished,
        **pages.prefix_cache.numbers,
    }
