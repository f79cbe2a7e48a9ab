"""Types of fields that requests have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
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


def kind(value: Any) -> str:
    """Which of the types below a value is of, or means to be of.

    With it, what is wrong is told of this type alone, and not of all.
    """
    if not isinstance(value, list):
        return "a text"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "lists of ids"
    return "some ids" if isinstance(first, int) else "a list"


Text = Annotated[str, AfterValidator(_encodable)]
TokenId = Annotated[int, Field(ge=0, le=MOST)]
IdText = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]

_Ids = Annotated[list[TokenId], Field(min_length=1)]
Prompts = Annotated[
    Annotated[Text, Tag("a text")]
    | Annotated[list[Text], Field(min_length=1), Tag("a list")]
    | Annotated[_Ids, Tag("some ids")]
    | Annotated[list[_Ids], Tag("lists of ids")],
    Discriminator(kind),
]

_Stop = Annotated[str, Field(min_length=1)]
Stop = Annotated[
    Annotated[_Stop, Tag("a text")]
    | Annotated[list[_Stop], Field(max_length=16), Tag("a list")],
    Discriminator(kind),
]
