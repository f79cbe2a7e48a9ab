"""What clients may ask: the bodies of requests, checked field by field.

A field that changes the answer is honoured or refused, never dropped in
silence. What no server knows is ignored, and null is the same as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import ConfigDict, Field, model_validator

from minisgl.sampling_params import MOST_IDS, MOST_LOGPROBS, SamplingParams
from minisgl.server.errors import ApiError
from minisgl.server.fields import (
    MOST,
    Bias,
    Ids,
    IdText,
    Int,
    Penalty,
    Prompts,
    Stop,
    Strict,
    Text,
)
from minisgl.server.formats import (
    FORM_FIELDS,
    Choice,
    Grammar,
    Regex,
    ResponseFormat,
    field_at_fault,
)
from minisgl.server.unsupported import (
    CHAT_ONLY,
    UNSUPPORTED,
    describe_unsupported,
    refuse_unsupported,
)

MOST_ANSWERS = 2048
"""To one request."""


class GenerateRequest(Strict):
    """The smallest request: a text in, a greedy answer out."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"prompt": "The sea is", "max_tokens": 8}]
        },
    )
    prompt: Text
    max_tokens: Int = Field(ge=1)
    ignore_eos: bool = False
    stream: bool = True


class StreamOptions(Strict):
    """What a stream carries beside the answer."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


Table = Mapping[str, tuple[Any, ...]]


def schema_with(
    example: dict[str, Any], unsupported: Table = UNSUPPORTED
) -> ConfigDict:
    """Let a model's schema say what pydantic cannot know of it."""

    def extend(schema: dict[str, Any]) -> None:
        fields, null = schema["properties"], {"type": "null"}
        for name in fields.keys() - set(schema["required"]):
            if null not in fields[name].get("anyOf", ()):
                fields[name] = {"anyOf": [fields[name], null]}
        describe_unsupported(schema, unsupported)
        schema["examples"] = [example]

    return ConfigDict(json_schema_extra=extend)


class SamplingFields(Strict):
    """What both OpenAI endpoints take, and as an extra body what else is here."""

    unsupported: ClassVar[Table] = UNSUPPORTED
    model: str | None = Field(None, description="As /v1/models lists it.")
    n: Int = Field(1, ge=1, le=128)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop = Field([])
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: Int = Field(-1, ge=-1, description="0 or -1: off.")
    min_p: float = Field(0.0, ge=0, le=1)
    seed: Int | None = Field(None, ge=-(2**63), lt=2**63)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    logit_bias: dict[IdText, Bias] = Field({}, max_length=MOST_IDS)
    ignore_eos: bool = False
    stop_token_ids: Ids = Field([], max_length=MOST_IDS)
    response_format: ResponseFormat | None = None
    regex: Regex | None = Field(None, description="Matches all of the answer.")
    choice: Choice | None = Field(None, description="The answer is one of it.")
    grammar: Grammar | None = Field(None, description="EBNF with rule root.")
    speculate: bool = Field(
        True, description="Check guessed tokens, if the server guesses."
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        refuse_unsupported(body, cls.unsupported)
        return {name: body[name] for name in body if body[name] is not None}

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400, "stream_options need stream: true", "stream_options"
            )
        return self

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if len(forms := self.forms) > 1:
            raise ApiError(
                400, f"{forms[1]} cannot stand beside {forms[0]}", forms[1]
            )
        return self

    @property
    def forms(self) -> list[str]:
        """The fields that ask for a form."""
        found = [name for name in FORM_FIELDS if getattr(self, name)]
        if self.response_format and self.response_format.text is None:
            found.remove("response_format")
        return found

    @property
    def tool_calls(self) -> str | None:
        """What may be called, for `SamplingParams`; only chats have it."""
        return None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def sampling_params(
        self, max_tokens: int, logprobs: int | None
    ) -> SamplingParams:
        """How the engine is told; numbers beyond 32 bits mean the same there.

        Raises:
            ApiError: 400, fields that are right each, and are not together.
        """
        try:
            return self._sampling_params(max_tokens, logprobs)
        except ValueError as error:
            reason = str(error)
            raise ApiError(400, reason, field_at_fault(reason)) from None

    def _sampling_params(
        self, max_tokens: int, logprobs: int | None
    ) -> SamplingParams:
        form = self.response_format
        return SamplingParams(
            temperature=self.temperature,
            top_k=min(self.top_k, MOST),
            top_p=self.top_p,
            ignore_eos=self.ignore_eos,
            max_tokens=min(max_tokens, MOST),
            min_p=self.min_p,
            seed=self.seed,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=self.logit_bias,
            stop_token_ids=self.stop_token_ids,
            logprobs=logprobs,
            json_schema=form.text if form else None,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            tool_calls=self.tool_calls,
            speculate=self.speculate,
        )


class OpenAICompletionRequest(SamplingFields):
    """/v1/completions: go on from a text, or from token ids."""

    model_config = schema_with(
        {"prompt": "The sea is", "max_tokens": 8}, UNSUPPORTED | CHAT_ONLY
    )
    unsupported = UNSUPPORTED | CHAT_ONLY
    prompt: Prompts
    max_tokens: Int = Field(16, ge=1)
    logprobs: Int | None = Field(None, ge=0, le=MOST_LOGPROBS)

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if (count := len(self.prompts) * self.n) > MOST_ANSWERS:
            message = f"{count} answers are too many: {MOST_ANSWERS} at most"
            raise ApiError(400, message, "prompt")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or several, as a list."""
        first = self.prompt[0] if isinstance(self.prompt, list) else None
        several = (
            self.prompt if isinstance(first, str | list) else [self.prompt]
        )
        return cast(list[str | list[int]], several)
