"""What an option of the command line is."""

from __future__ import annotations

from typing import Any, NamedTuple

from minisgl.server.checks import Check


class Option(NamedTuple):
    """An option: which setting it is, of which type, its names, what it does.

    check: returns the value as it is to be, or raises typer.BadParameter.
    env: the variable of the environment that stands in for it.
    """

    setting: str
    kind: Any
    names: str
    text: str
    check: Check | None = None
    env: str | None = None
