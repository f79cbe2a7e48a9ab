"""Functions and calls in a chat, for templates that know of them or do not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from minisgl.structure.tags import ARGUMENTS, END, NAME, OPEN

_INTRODUCTION = """\
You can call functions. These are all there are, each as a line of JSON:
{functions}

To call one, write this, with its name and its arguments as JSON:
{example}
Its result comes in <tool_response>."""


def knows_calls(template: str) -> bool:
    """Whether a chat template writes calls in the form that answers have.

    Some have another one, as arguments in XML; models would get two minds.
    """
    return OPEN in template and "<function=" not in template


def with_parsed_calls(
    turns: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """The turns as templates want them: arguments are dicts, not texts."""
    found = []
    for turn in turns:
        calls = [
            call
            | {
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                }
            }
            for call in turn.get("tool_calls") or ()
        ]
        found.append({**turn, "tool_calls": calls} if calls else {**turn})
    return found


def as_plain_turns(
    turns: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """The same chat in turns that any template knows.

    Functions go into the system's text, behind what it says already; calls are
    text of the assistant, results text of the user.
    """
    found = [_plain(turn) for turn in turns]
    if not functions:
        return found
    lines = "\n".join(json.dumps(f, ensure_ascii=False) for f in functions)
    example = OPEN + NAME + '"..."' + ARGUMENTS + "{...}" + END
    system = _INTRODUCTION.format(functions=lines, example=example)
    if found[0]["role"] == "system":
        found[0]["content"] += f"\n\n{system}"
    else:
        found.insert(0, {"role": "system", "content": system})
    return found


def _plain(turn: Mapping[str, Any]) -> dict[str, str]:
    role, content = turn["role"], turn.get("content") or ""
    if role == "tool":
        content = f"<tool_response>\n{content}\n</tool_response>"
        return {"role": "user", "content": content}
    parts = [content] if content else []
    for call in turn.get("tool_calls") or ():
        name = json.dumps(call["function"]["name"])
        arguments = call["function"]["arguments"]
        parts.append(OPEN + NAME + name + ARGUMENTS + arguments + END)
    return {"role": role, "content": "\n".join(parts)}
