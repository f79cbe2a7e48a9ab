"""What clients may ask: the bodies of requests, checked field by field.

A field that changes the answer is honoured or refused, never dropped in
silence. What no server knows is ignored, and null is the same as absent.
"""

from __future__ import annotations

from typing import Any, Literal, Self, cast

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
from minisgl.server.unsupported import describe_unsupported, refuse_unsupported

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


def schema_with(example: dict[str, Any]) -> ConfigDict:
    """Let a model's schema say what pydantic cannot know of it."""

    def extend(schema: dict[str, Any]) -> None:
        fields, null = schema["properties"], {"type": "null"}
        for name in fields.keys() - set(schema["required"]):
            if null not in fields[name].get("anyOf", ()):
                fields[name] = {"anyOf": [fields[name], null]}
        describe_unsupported(schema)
        schema["examples"] = [example]

    return ConfigDict(json_schema_extra=extend)


class SamplingFields(Strict):
    """What both OpenAI endpoints take, and as an extra body what else is here."""

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

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        refuse_unsupported(body)
        return {name: body[name] for name in body if body[name] is not None}

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400, "stream_options need stream: true", "stream_options"
            )
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def sampling_params(
        self, max_tokens: int, logprobs: int | None
    ) -> SamplingParams:
        """How the engine is told; numbers beyond 32 bits mean the same there."""
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
        )


class OpenAICompletionRequest(SamplingFields):
    """/v1/completions: go on from a text, or from token ids."""

    model_config = schema_with({"prompt": "The sea is", "max_tokens": 8})
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
