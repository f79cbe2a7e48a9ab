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
    "ChatPrompt",
    "DetokenizeMsg",
    "SamplingParams",
    "StatusMsg",
    "StatusResultMsg",
    "TokenLogprob",
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
class TokenLogprob:
    """How likely the model found a token, and which ones it found likeliest.

    All are natural logarithms of probabilities of the bare model: before
    penalties, bias and temperature.

    logprob: of the token that was chosen.
    top_ids, top_logprobs: of the likeliest, as many as were asked for.
    """

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass
class DetokenizeMsg(BaseTokenizerMsg):
    """One more token of a request, or its end.

    next_token: the id; -1 when the request failed and there is none.
    finished: this is the last message about it.
    finish_reason: with the last one: stop (an end token, or one that the
        request named), length, error (it failed here), or refused (it was at
        fault itself).
    error: what went wrong, for a person to read.
    prompt_tokens: tokens of the prompt; with the first token of a request.
    cached_tokens: how many of them were in the cache; with the first token.
    logprobs: of this token, if the request asked for it.
    """

    uid: int
    next_token: int
    finished: bool
    finish_reason: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    logprobs: TokenLogprob | None = None


@dataclass
class ChatPrompt:
    """The turns of a chat in which functions are called, or may be.

    turns: as a client sends them; the arguments of a call are JSON.
    functions: JSON of the list of functions, empty where none may be called.
        As text they may have any keys.
    """

    turns: list[dict[str, Any]]
    functions: str


@dataclass
class TokenizeMsg(BaseTokenizerMsg):
    """A new request: a text, the turns of a chat, or the ids of a prompt."""

    uid: int
    text: str | list[dict[str, str]] | list[int] | ChatPrompt
    sampling_params: SamplingParams


@dataclass
class AbortMsg(BaseTokenizerMsg):
    """The client of this request has gone."""

    uid: int


@dataclass
class StatusMsg(BaseTokenizerMsg):
    """How is the scheduler? The answer comes back under this number."""

    uid: int


@dataclass
class StatusResultMsg(BaseTokenizerMsg):
    """The scheduler's answer, on its way to whoever asked; see `StatusReply`."""

    uid: int
    numbers: dict[str, int]
