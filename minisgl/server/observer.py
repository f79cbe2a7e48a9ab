"""Watches generations: counts for the metrics, and tells the request log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minisgl.message import UserReply
from minisgl.sampling_params import SamplingParams
from minisgl.server.frontend import FrontendManager
from minisgl.server.generation import Generation, Piece, Prompt
from minisgl.server.metrics import Metrics
from minisgl.server.request_log import Record, RequestLog

if TYPE_CHECKING:
    from minisgl.server.args import ServerArgs

ABORT = "abort"


@dataclass
class Observer:
    """Everything that is noted about the answers of an app.

    log: None, unless it is wanted.
    """

    log: RequestLog | None = None
    metrics: Metrics = field(default_factory=Metrics)

    @staticmethod
    def create(config: ServerArgs) -> Observer:
        """As the settings say."""
        wanted = config.log_requests or config.log_prompts
        return Observer(RequestLog(config.log_prompts) if wanted else None)

    def replied(self, record: Record, reply: UserReply, now: float) -> None:
        """More of an answer has come."""
        metrics, tokens = self.metrics, reply.completion_tokens
        if reply.prompt_tokens is not None:
            record.prompt_tokens = reply.prompt_tokens
            record.cached_tokens = reply.cached_tokens or 0
            metrics.prompt_tokens += record.prompt_tokens
            metrics.cached_tokens += record.cached_tokens
        metrics.accepted_tokens += reply.accepted_tokens or 0
        metrics.rejected_tokens += reply.rejected_tokens or 0
        if tokens == 0:  # the end of a request that failed
            return
        if record.first is None:
            record.first = now
            metrics.first.add(now - record.asked)
        else:
            metrics.between.add(now - record.last)
        record.last = now
        record.completion_tokens += tokens
        metrics.generated_tokens += tokens
        if self.log is not None and self.log.with_text:
            record.text.append(reply.incremental_output)

    def ended(self, record: Record, reason: str) -> None:
        """Nothing more comes of it."""
        record.ended = reason
        self.metrics.ended[reason] += 1
        if self.log is not None:
            self.log.write(record, time.perf_counter())


class MeteredGeneration(Generation):
    """A generation whose observer hears when what came of every answer."""

    def __init__(
        self,
        observer: Observer,
        frontend: FrontendManager,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        n: int = 1,
        stops: Sequence[str] = (),
    ) -> None:
        super().__init__(frontend, prompts, params, n, stops)
        self._observer = observer
        self._records: dict[int, Record] = {}  # by uid, until it has ended

    def close(self) -> None:
        """Abort what still runs, and note that."""
        for uid in self._choices:
            self._end(uid, ABORT)
        super().close()

    async def _ask(self, p: int, k: int) -> None:
        asked = time.perf_counter()
        await super()._ask(p, k)
        uid = next(reversed(self._choices))  # the newest one
        self._records[uid] = Record(uid, asked, self._prompts[p])

    async def _take(self, choice: Any, reply: UserReply) -> Piece:
        record = self._records[reply.uid]
        # When it came here, however long it then waited for a slow client.
        self._observer.replied(record, reply, reply.came)
        piece = await super()._take(choice, reply)
        if piece.error is not None:
            self._end(reply.uid, reply.finish_reason or "error")
        elif piece.finish_reason is not None:
            self._end(reply.uid, piece.finish_reason)
        return piece

    def _end(self, uid: int, reason: str) -> None:
        # One that could not even be asked for has no record.
        if (record := self._records.pop(uid, None)) is not None:
            self._observer.ended(record, reason)
