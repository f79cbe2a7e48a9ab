"""Fields that other servers honour and this one does not: refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minisgl.server.errors import ApiError

# For each field the values that ask for nothing; they pass. null always does.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": (),
    "regex": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Let a body pass if it asks for nothing that is not here.

    Raises:
        ApiError: 400, with the first field that does as its `param`.
    """
    for name, neutral in UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and not any(_same(value, n) for n in neutral):
            message = f"{name} is not supported here; leave it out"
            raise ApiError(400, message, name)


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, where 1 is not true."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def describe_unsupported(schema: dict[str, Any]) -> None:
    """Put these fields into a JSON schema, with the values that pass."""
    for name, neutral in UNSUPPORTED.items():
        schema["properties"][name] = {
            "enum": [*neutral, None],
            "description": "Not supported: anything else is refused.",
        }
