"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from minisgl.sampling_params import MOST_LOGPROBS
from minisgl.server.errors import ApiError
from minisgl.server.fields import MOST, Int, Strict, Text, kind
from minisgl.server.protocol import SamplingFields, schema_with

_NEEDS_TOOLS = ("tool_calls", "tool_call_id", "function_call", "audio")

_EXAMPLE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Why is the sky blue?"}],
    "max_tokens": 32,
}


class TextPart(Strict):
    """A part of a message; other kinds than text are refused."""

    type: Literal["text"]
    text: Text


Content = Annotated[
    Annotated[Text, Tag("a text")]
    | Annotated[list[TextPart], Field(min_length=1), Tag("a list")],
    Discriminator(kind),
]


# In JSON schema, that only an assistant's turn may have no content.
_WHO_SPEAKS: dict[str, Any] = {
    "anyOf": [
        {"properties": {"role": {"const": "assistant"}}},
        {
            "required": ["content"],
            "properties": {"content": {"type": ["string", "array"]}},
        },
    ]
}


class Message(Strict):
    """One turn of a chat. Only an assistant's may have no content."""

    model_config = ConfigDict(json_schema_extra=_WHO_SPEAKS)
    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_tools(cls, turn: Any) -> Any:
        for name in _NEEDS_TOOLS if isinstance(turn, dict) else ():
            if turn.get(name):
                raise ValueError(f"{name} is not supported here; leave it out")
        return turn

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of the {self.role} needs content")
        return self

    def turn(self) -> dict[str, str]:
        """As chat templates want it; parts are joined with a newline."""
        role = "system" if self.role == "developer" else self.role
        content = self.content or ""
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        return {"role": role, "content": content}


class ChatCompletionRequest(SamplingFields):
    """/v1/chat/completions: the next turn of a conversation."""

    model_config = schema_with(_EXAMPLE)
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: Int | None = Field(
        None,
        ge=1,
        description="Left out: as many as fit. Goes before max_tokens.",
    )
    max_tokens: Int | None = Field(
        None, ge=1, description="The older name of max_completion_tokens."
    )
    logprobs: bool = False
    top_logprobs: Int | None = Field(None, ge=0, le=MOST_LOGPROBS)

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                400, "top_logprobs needs logprobs: true", "top_logprobs"
            )
        return self

    @property
    def limit(self) -> int:
        """Most tokens to generate."""
        return self.max_completion_tokens or self.max_tokens or MOST

    @property
    def count_logprobs(self) -> int | None:
        """Alternatives to report with each token; None is no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None
