"""The body of /v1/chat/completions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from minisgl.message.tokenizer import ChatPrompt
from minisgl.sampling_params import MOST_LOGPROBS
from minisgl.server.errors import ApiError
from minisgl.server.fields import MOST, Int, Strict, Text, kind
from minisgl.server.protocol import SamplingFields, schema_with
from minisgl.server.tools import (
    Tool,
    ToolCall,
    ToolChoice,
    Tools,
    check_choice,
    tool_grammar,
)

_UNSUPPORTED = ("function_call", "audio")

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
    """One turn of a chat. Only an assistant's may have no content.

    tool_calls: of an assistant; what it wanted to be called.
    tool_call_id: of a tool; which of these calls it has the result of.
    """

    model_config = ConfigDict(json_schema_extra=_WHO_SPEAKS)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, turn: Any) -> Any:
        for name in _UNSUPPORTED if isinstance(turn, dict) else ():
            if turn.get(name):
                raise ValueError(f"{name} is not supported here; leave it out")
        return turn

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of the {self.role} needs content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("only an assistant's message has tool_calls")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id goes with role tool, and only there")
        return self

    @property
    def mentions_calls(self) -> bool:
        """Whether it asks for calls or answers one."""
        return bool(self.tool_calls) or self.role == "tool"

    def turn(self) -> dict[str, Any]:
        """As chat templates want it; parts are joined with a newline."""
        role = "system" if self.role == "developer" else self.role
        content = self.content or ""
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        found: dict[str, Any] = {"role": role, "content": content}
        if self.tool_calls:
            found["tool_calls"] = [call.turn() for call in self.tool_calls]
        return found


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
    tools: Tools = Field([])
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                400, "top_logprobs needs logprobs: true", "top_logprobs"
            )
        return self

    @model_validator(mode="after")
    def _can_be_called(self) -> Self:
        check_choice(self.tools, self.tool_choice)
        if self.tool_calls is not None and self.forms:
            message = "cannot stand beside tools; or say tool_choice: none"
            raise ApiError(400, f"{self.forms[0]} {message}", self.forms[0])
        asked: set[str] = set()
        for i, message_ in enumerate(self.messages):
            asked |= {call.id for call in message_.tool_calls or ()}
            answered = message_.tool_call_id
            if answered is not None and answered not in asked:
                place = f"messages[{i}].tool_call_id"
                message = f"no call before has the id {answered!r}"
                raise ApiError(400, message, place)
        return self

    @property
    def tool_calls(self) -> str | None:
        """What may be called; None: nothing."""
        return tool_grammar(
            self.tools, self.tool_choice, self.parallel_tool_calls
        )

    @property
    def prompt(self) -> list[dict[str, str]] | ChatPrompt:
        """The turns, with functions if they are spoken of."""
        turns = [message.turn() for message in self.messages]
        tools: list[Tool] = self.tools if self.tool_choice != "none" else []
        if not tools and not any(m.mentions_calls for m in self.messages):
            return turns
        sent = [tool.model_dump(exclude_none=True) for tool in tools]
        return ChatPrompt(turns, json.dumps(sent))

    @property
    def limit(self) -> int:
        """Most tokens to generate."""
        return self.max_completion_tokens or self.max_tokens or MOST

    @property
    def count_logprobs(self) -> int | None:
        """Alternatives to report with each token; None is no logprobs."""
        return (self.top_logprobs or 0) if self.logprobs else None
