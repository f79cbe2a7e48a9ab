"""Chat templates: Jinja programs that write the turns of a chat as one text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training only."""

    tags = {"generation"}  # noqa: RUF012, Jinja reads it from the class

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        ends = ("name:endgeneration",)
        body = parser.parse_statements(ends, drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own would write < as \u003c, for the sake of HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    # A template comes with a checkpoint, and is code: it runs in a sandbox.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(source)


def render_chat(
    source: str,
    messages: Sequence[Mapping[str, Any]],
    names: Mapping[str, str],
) -> str:
    """The text of a chat up to where the answer begins.

    It is that of transformers' `apply_chat_template` with
    `add_generation_prompt`: same Jinja settings, same names.

    source: the template.
    messages: the turns, dicts with `role` and `content`.
    names: the special tokens by their role, as bos_token.

    Raises:
        ValueError: no turns, or the template cannot make a text of them.
    """
    if not messages or not all(isinstance(m, Mapping) for m in messages):
        raise ValueError("a chat is a list of turns, at least one")
    # Clients send null for what they leave out; templates expect no key then.
    turns = [{k: v for k, v in m.items() if v is not None} for m in messages]
    try:
        return _compile(source).render(
            messages=turns,
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **names,
        )
    except Exception as error:  # a template can raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"the chat template fails: {reason}") from error
