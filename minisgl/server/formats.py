"""Forms that a client may ask for: JSON, an expression, texts, a grammar."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from minisgl.server.fields import Strict, Text
from minisgl.structure.regex import check_regex
from minisgl.structure.schema import (
    MOST_TEXT,
    check_schema,
)


def _schema(value: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema that can be kept to."""
    check_schema(value)
    return value


def _regex(value: str) -> str:
    check_regex(value)
    return value


_Form = Annotated[Text, Field(min_length=1, max_length=MOST_TEXT)]
Schema = Annotated[dict[str, Any], AfterValidator(_schema)]
Regex = Annotated[_Form, AfterValidator(_regex)]
Choice = Annotated[list[_Form], Field(min_length=1, max_length=1000)]
Grammar = _Form
Name = Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]


def close_objects(schema: Any) -> Any:
    """The schema with objects that have no other properties than they name.

    Only where it leaves that open.
    """
    if isinstance(schema, list):
        return [close_objects(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        named = key in ("properties", "$defs", "definitions")
        if named and isinstance(value, dict):
            value = {k: close_objects(v) for k, v in value.items()}
        elif key not in ("enum", "const", "default", "examples", "required"):
            value = close_objects(value)
        found[key] = value
    if "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


def schema_text(schema: dict[str, Any], strict: bool | None) -> str:
    """A schema as JSON; `strict` leaves out properties that it does not name."""
    return json.dumps(close_objects(schema) if strict else schema)


class JsonSchema(Strict):
    """A form by its schema, as OpenAI's clients send it.

    The schema is kept to with and without `strict`. With it, an object has no
    properties but those that the schema names.
    """

    name: Name
    description: Text | None = None
    schema_: Schema | None = Field(None, alias="schema")
    strict: bool | None = None


# In JSON schema, that only one type has a schema beside it, and needs it.
_WHICH: dict[str, Any] = {
    "anyOf": [
        {
            "properties": {
                "type": {"enum": ["text", "json_object"]},
                "json_schema": {"type": "null"},
            }
        },
        {
            "required": ["json_schema"],
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {"type": "object"},
            },
        },
    ]
}


class ResponseFormat(Strict):
    """text: anything; json_object: any object; json_schema: what it says."""

    model_config = ConfigDict(json_schema_extra=_WHICH)
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_if_named(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema only")
        return self

    @property
    def text(self) -> str | None:
        """The schema of the answer; None: it need not be JSON."""
        if self.type == "text":
            return None
        found = self.json_schema
        if found is None or found.schema_ is None:
            return '{"type": "object"}'
        return schema_text(found.schema_, found.strict)


FORM_FIELDS = ("response_format", "regex", "choice", "grammar")
"""Fields of a request of which at most one may ask for a form."""

PARAMS = {
    "json_schema": "response_format",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "tool_calls": "tools",
    "logit_bias": "logit_bias",
    "stop_token_ids": "stop_token_ids",
}
"""Which field of a request fills one of `SamplingParams` that may be refused."""


def field_at_fault(error: str) -> str | None:
    """The field that the engine's refusal names first, as clients know it."""
    return PARAMS.get(error.partition(" ")[0].removesuffix(":"))
