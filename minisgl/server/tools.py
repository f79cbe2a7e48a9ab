"""Functions that a model may call: what a client says about them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from minisgl.server.errors import ApiError
from minisgl.server.fields import Strict, Text
from minisgl.server.formats import Name, Schema, close_objects
from minisgl.structure.schema import MOST_TEXT
from minisgl.structure.tags import ToolGrammar


def _arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name: a function takes no other JSON than an object."""
    if schema.get("type", "object") != "object":
        raise ValueError("at #/type: the arguments of a function are an object")
    return schema


class Function(Strict):
    """A function by its name, and the schema of its arguments.

    strict: it has no arguments but those that the schema names.
    """

    name: Name
    description: Text | None = None
    parameters: Annotated[Schema, AfterValidator(_arguments)] | None = None
    strict: bool | None = None

    @property
    def schema_(self) -> dict[str, Any]:
        """What its arguments are; without parameters it takes none."""
        if self.parameters is None:
            return {"type": "object", "properties": {}} | _CLOSED
        found: dict[str, Any] = {"type": "object"} | self.parameters
        return close_objects(found) if self.strict else found


_CLOSED = {"additionalProperties": False}


class Tool(Strict):
    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    name: str


class NamedTool(Strict):
    """This function is to be called."""

    type: Literal["function"]
    function: FunctionName


def _kind(value: Any) -> str:
    return "a word" if isinstance(value, str) else "a function"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("a word")]
    | Annotated[NamedTool, Tag("a function")],
    Discriminator(_kind),
]
Tools = Annotated[list[Tool], Field(max_length=128)]


class CalledFunction(Strict):
    """A function and its arguments: an object, written as JSON."""

    name: Name
    arguments: Text

    def parsed(self) -> dict[str, Any]:
        """The arguments; ValueError if they are none."""
        found = json.loads(self.arguments or "{}")
        if not isinstance(found, dict):
            raise ValueError("arguments are the JSON of an object")
        return found


def _callable(value: CalledFunction) -> CalledFunction:
    try:
        value.parsed()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"arguments cannot be read: {error}") from None
    return value


class ToolCall(Strict):
    """A call that an assistant has made before."""

    id: Text
    type: Literal["function"] = "function"
    function: Annotated[CalledFunction, AfterValidator(_callable)]

    def turn(self) -> dict[str, Any]:
        """As chat templates want it."""
        called = {
            "name": self.function.name,
            "arguments": self.function.arguments or "{}",
        }
        return {"id": self.id, "type": "function", "function": called}


def check_choice(tools: Sequence[Tool], choice: str | NamedTool | None) -> None:
    """Whether what is to be called is there, once.

    Raises:
        ApiError: 400.
    """
    names = [tool.function.name for tool in tools]
    for i, name in enumerate(names):
        if name in names[:i]:
            message = f"there are two functions called {name}"
            raise ApiError(400, message, f"tools[{i}].function.name")
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            message = f"no function is called {choice.function.name!r}"
            raise ApiError(400, message, "tool_choice.function.name")
    elif choice == "required" and not tools:
        raise ApiError(400, "required needs tools", "tool_choice")


def tool_grammar(
    tools: Sequence[Tool], choice: str | NamedTool | None, parallel: bool
) -> str | None:
    """What `SamplingParams.tool_calls` is to be; None: nothing may be called.

    Raises:
        ApiError: 400, together the schemas are too long.
    """
    if not tools or choice == "none":
        return None
    schemas = {t.function.name: t.function.schema_ for t in tools}
    if isinstance(choice, NamedTool):
        name = choice.function.name
        found = ToolGrammar({name: schemas[name]}, True, False)
    else:
        found = ToolGrammar(schemas, choice == "required", parallel)
    if len(text := found.to_json()) > MOST_TEXT:
        message = f"tools have at most {MOST_TEXT} characters in all"
        raise ApiError(400, message, "tools")
    return text
