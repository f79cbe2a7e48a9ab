"""What clients get: the bodies of answers and of the events of a stream."""

from __future__ import annotations

import time
from typing import Literal

from pydantic import BaseModel, Field

FinishReason = Literal["stop", "length", "error", "tool_calls"]


class ModelCard(BaseModel):
    """A model that can be asked for by `id`."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(default_factory=lambda: int(time.time()))
    owned_by: str = "mini-sglang"
    root: str


class ModelList(BaseModel):
    """All models of this server: there is one."""

    object: Literal["list"] = "list"
    data: list[ModelCard] = Field(default_factory=list)


class PromptDetails(BaseModel):
    """How much of the prompt did not have to be computed."""

    cached_tokens: int


class CompletionDetails(BaseModel):
    """Tokens that were guessed and found right, and those found wrong."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    """Tokens of a request; those of the answer include its end token."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | None = None


class TopLogprob(BaseModel):
    """A token that might have been chosen; `bytes` are those of its text."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token that was chosen, and the likeliest ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry for each token."""

    content: list[TokenLogprob]


class FunctionCall(BaseModel):
    """A function, and its arguments as JSON."""

    name: str
    arguments: str


class ChatToolCall(BaseModel):
    """A call that the client is asked to make, and to tell the result of."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatAnswer(BaseModel):
    """The assistant's turn; content is null where it only calls."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ChatToolCall] = []


class ChatChoice(BaseModel):
    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(BaseModel):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class FunctionDelta(BaseModel):
    """The name where a call begins, then pieces of its arguments."""

    name: str | None = None
    arguments: str


class ToolCallDelta(BaseModel):
    """A call by its place in the answer; id and type where it begins."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(BaseModel):
    """What is new: the role in the first chunk of a choice, then the rest."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    tool_calls: list[ToolCallDelta] = []


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletionChunk(BaseModel):
    """An event of a streamed chat; the one with the usage has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class TextLogprobs(BaseModel):
    """Lists of one length: an entry for each token.

    text_offset: where in the answer the token begins, in characters.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class TextCompletion(BaseModel):
    """The answer of /v1/completions, and each event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | None = None


class GenerateAnswer(BaseModel):
    """The answer of /generate, and each event of its stream."""

    text: str
    finish_reason: FinishReason | None


class Health(BaseModel):
    """What the scheduler counts; nothing while it is too busy to say."""

    status: Literal["ok", "busy"]
    numbers: dict[str, int]


class Root(BaseModel):
    """Says that the path of the API is right."""

    status: Literal["ok"]


class Version(BaseModel):
    """The version of the server."""

    version: str
