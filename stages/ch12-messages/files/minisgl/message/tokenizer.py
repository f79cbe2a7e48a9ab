"""Messages to the processes that turn text into tokens and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minisgl.message.utils import deserialize_type, serialize_type
from minisgl.sampling_params import SamplingParams

__all__ = [
    "AbortMsg",
    "BaseTokenizerMsg",
    "BatchTokenizerMsg",
    "DetokenizeMsg",
    "SamplingParams",
    "TokenizeMsg",
]


@dataclass
class BaseTokenizerMsg:
    """Anything a tokenizer process can be told."""

    @staticmethod
    def encoder(msg: BaseTokenizerMsg) -> dict[str, Any]:
        """A dict for msgpack."""
        return serialize_type(msg)

    @staticmethod
    def decoder(json: dict[str, Any]) -> BaseTokenizerMsg:
        """The message of such a dict; ValueError for any other."""
        found: BaseTokenizerMsg = deserialize_type(globals(), json)
        return found


@dataclass
class BatchTokenizerMsg(BaseTokenizerMsg):
    """Several at once."""

    data: list[BaseTokenizerMsg]


@dataclass
class DetokenizeMsg(BaseTokenizerMsg):
    """One more token of a request, or its end.

    next_token: the id; -1 when the request failed and there is none.
    finished: this is the last message about it.
    finish_reason: with the last one: stop (an end token), length, or error.
    error: what went wrong, for a person to read.
    """

    uid: int
    next_token: int
    finished: bool
    finish_reason: str | None = None
    error: str | None = None


@dataclass
class TokenizeMsg(BaseTokenizerMsg):
    """A new request: a text, or the turns of a chat for the chat template."""

    uid: int
    text: str | list[dict[str, str]]
    sampling_params: SamplingParams


@dataclass
class AbortMsg(BaseTokenizerMsg):
    """The client of this request has gone."""

    uid: int
