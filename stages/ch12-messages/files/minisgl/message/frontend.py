"""Messages to the process that talks to clients."""

from __future__ import annotations

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
    finish_reason, error: as in `DetokenizeMsg`, with the last one.
    """

    uid: int
    incremental_output: str
    finished: bool
    finish_reason: str | None = None
    error: str | None = None
