"""Types of fields that requests have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)

MOST = 2**31 - 1
"""Stands for as many as fit; the scheduler knows how many that are."""


class Strict(BaseModel):
    """A body or a part of one."""

    # A "5" or a true is a mistake of the client, not a 5 or a 1.
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def _encodable(text: str) -> str:
    # "\ud83d" is JSON, but half a character, which no tokenizer can take.
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("Half a surrogate pair is no character") from None
    return text


def _whole(value: Any) -> Any:
    # JSON has one type of numbers; 5.0 is as good an integer as 5.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _wholes(values: Any) -> Any:
    if isinstance(values, list) and any(type(v) is float for v in values):
        return [_whole(value) for value in values]
    return values


def kind(value: Any) -> str:
    """Which of the types below a value is of, or means to be of.

    With it, what is wrong is told of this type alone, and not of all.
    """
    if not isinstance(value, list):
        return "a text"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "lists of ids"
    return "some ids" if isinstance(first, int | float) else "a list"


Text = Annotated[str, AfterValidator(_encodable)]
Int = Annotated[int, BeforeValidator(_whole)]
TokenId = Annotated[int, Field(ge=0, le=MOST)]
Ids = Annotated[list[TokenId], BeforeValidator(_wholes)]
IdText = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]

_Ids = Annotated[Ids, Field(min_length=1)]
Prompts = Annotated[
    Annotated[Text, Tag("a text")]
    | Annotated[list[Text], Field(min_length=1), Tag("a list")]
    | Annotated[_Ids, Tag("some ids")]
    | Annotated[list[_Ids], Field(min_length=1), Tag("lists of ids")],
    Discriminator(kind),
]

_Stop = Annotated[str, Field(min_length=1)]
Stop = Annotated[
    Annotated[_Stop, Tag("a text")]
    | Annotated[list[_Stop], Field(max_length=16), Tag("a list")],
    Discriminator(kind),
]
