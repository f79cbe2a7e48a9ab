"""Messages to the process that talks to clients."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from minisgl.message.utils import deserialize_type, serialize_type


@dataclass
class BaseFrontendMsg:
    """Anything the front end can be told."""

    @staticmethod
    def encoder(msg: BaseFrontendMsg) -> dict[str, Any]:
        """A dict for msgpack."""
        return serialize_type(msg)

    @staticmethod
    def decoder(json: dict[str, Any]) -> BaseFrontendMsg:
        """The message of such a dict; ValueError for any other."""
        found: BaseFrontendMsg = deserialize_type(globals(), json)
        return found


@dataclass
class BatchFrontendMsg(BaseFrontendMsg):
    """Several at once."""

    data: list[BaseFrontendMsg]


@dataclass
class UserReply(BaseFrontendMsg):
    """More text of a request, or its end.

    incremental_output: what is new; the pieces joined are the answer.
    finished: this is the last message about it.
    finish_reason, error: as in `DetokenizeMsg`, with the last one; or gone: the
        engine is.
    completion_tokens: how many tokens this is about, also if their text is held
        back; summed over all replies, those of the answer.
    prompt_tokens, cached_tokens: as in `DetokenizeMsg`, once.
    logprobs: one dict for each of those tokens, if they were asked for, of
        `token` (its text), `logprob`, `bytes` (of the text, as numbers), and
        `top_logprobs`, a list of such dicts of other tokens.
    came: no field and not sent: when this process made it, or it arrived here,
        in seconds of `time.perf_counter`.
    """

    uid: int
    incremental_output: str
    finished: bool
    finish_reason: str | None = None
    error: str | None = None
    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    logprobs: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        self.came = time.perf_counter()


@dataclass
class StatusReply(BaseFrontendMsg):
    """How the scheduler is.

    numbers: `running` and `waiting` requests; `free_pages` and `cached_pages`
        of the `total_pages` in the KV pool; requests `aborted` and `finished`
        since the start.
    """

    uid: int
    numbers: dict[str, int]
