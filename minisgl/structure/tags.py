"""Calls of functions as marked parts of an answer.

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>

It is the form that Hermes models were trained on (Nous Research, 2024), and
Qwen's after them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from minisgl.structure.schema import check_schema

OPEN, CLOSE = "<tool_call>", "</tool_call>"
NAME, ARGUMENTS = '\n{"name": ', ', "arguments": '
END = "}\n" + CLOSE
"""What follows the arguments; no JSON on a single line has it inside."""


@dataclass(frozen=True)
class ToolGrammar:
    """Answers that may call functions, and call them well.

    schemas: by the function's name, the JSON schema of its arguments.
    required: the answer is calls; else it is a text that may have some.
    parallel: more than one call.
    """

    schemas: dict[str, Any]
    required: bool = False
    parallel: bool = True

    def to_json(self) -> str:
        """As `SamplingParams.tool_calls` wants it."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> ToolGrammar:
        """What `to_json` has written; ValueError for anything else."""
        try:
            found = ToolGrammar(**json.loads(text))
            names = [*found.schemas]
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"no ToolGrammar: {error}") from None
        if not names:
            raise ValueError("there are no functions")
        return found

    @staticmethod
    @lru_cache(maxsize=256)
    def check(text: str) -> None:
        """Whether all arguments can be kept to; ValueError if not."""
        for name, schema in ToolGrammar.from_json(text).schemas.items():
            try:
                check_schema(schema)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    def structural_tag(self, grammar_of: Callable[[str], str]) -> Any:
        """The same as xgrammar's structural tag, a dict.

        grammar_of: makes EBNF of a JSON schema.
        """
        tags = [
            {
                "type": "tag",
                "begin": OPEN + NAME + json.dumps(name) + ARGUMENTS,
                "content": {
                    "type": "grammar",
                    "grammar": grammar_of(json.dumps(schema)),
                },
                "end": END,
            }
            for name, schema in self.schemas.items()
        ]
        found: dict[str, Any] = {"tags": tags}
        found["stop_after_first"] = not self.parallel
        if self.required:
            found |= {"type": "tags_with_separator", "separator": "\n"}
            found["at_least_one"] = True
        else:
            found |= {"type": "triggered_tags", "triggers": [OPEN]}
        return {"type": "structural_tag", "format": found}
