"""What is said to whoever waits for a request, and how requests end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from minisgl.core import Req, SamplingParams
from minisgl.engine import FAILED_TOKEN
from minisgl.message import DetokenizeMsg, TokenLogprob
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.table import TableManager
from minisgl.scheduler.utils import PendingReq


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
        self,
        req: Req,
        token: int,
        reason: str | None,
        *,
        first: bool,
        logprobs: tuple[float, list[int], list[float]] | None,
    ) -> DetokenizeMsg:
        """One more token, with a reason if it is the last.

        first: it is the first one of its request. Make its message before the
            request's prompt goes into the cache: what was cached is then known.
        """
        self.finished += reason is not None
        msg = DetokenizeMsg(req.uid, token, reason is not None, reason)
        if first:
            msg.prompt_tokens = req.max_device_len - req.output_len
            msg.cached_tokens = req.cache_handle.cached_len
        if logprobs is not None:
            msg.logprobs = TokenLogprob(*logprobs)
        return msg

    def failure(self, uid: int, reason: str, error: str) -> DetokenizeMsg:
        """The end of a request that gets no more tokens.

        reason: `error`, or `refused` if the request itself is at fault.
        """
        return DetokenizeMsg(uid, FAILED_TOKEN, True, reason, error)


def status_numbers(
    replies: ReplyMaker,
    rows: TableManager,
    pages: CacheManager,
    queue: list[PendingReq],
) -> dict[str, int]:
    """How a scheduler is; what the numbers are says `StatusReply`.

    A request runs as long as it holds a row. One whose client has just gone may
    hold it until the batch that has it comes back.
    """
    cached = pages.prefix_cache.size_info.total_size
    return {
        "running": len(rows.page_table) - rows.available_size,
        "waiting": sum(pending.chunked_req is None for pending in queue),
        "free_pages": len(pages.free_pages),
        "cached_pages": cached // pages.page_size,
        "total_pages": pages.num_pages,
        "aborted": replies.aborted,
        "finished": replies.finished,
    }
