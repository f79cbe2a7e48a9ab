"""Titles and sentences of the films, without what drawing them needs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAMES = ("life", "batching", "radix", "overlap", "parallel", "graph")
"""The films in the order of the book."""

LANGUAGES = ("en", "zh")
TEXTS = Path(__file__).parent / "narration"


@dataclass(frozen=True)
class Line:
    """A sentence of the narration, in both languages; English is spoken."""

    key: str
    en: str
    zh: str


def read(name: str) -> dict[str, Any]:
    """The file of a film: title, poster, and sentences by key.

    Raises:
        ValueError: no film has that name.
    """
    if name not in NAMES:
        known = ", ".join(NAMES)
        raise ValueError(f"no film is called {name!r}; known: {known}")
    with (TEXTS / f"{name}.toml").open("rb") as file:
        return tomllib.load(file)


def title(name: str, language: str) -> str:
    """What a film is called."""
    found: str = read(name)["title"][language]
    return found


def lines(said: dict[str, Any], facts: Mapping[str, Any]) -> list[Line]:
    """The sentences of a file, with facts where the text names them.

    Raises:
        KeyError: the text names something that is not among the facts.
    """
    return [
        Line(key, **{lang: texts[lang].format(**facts) for lang in LANGUAGES})
        for key, texts in said.items()
        if key not in ("title", "poster")
    ]
