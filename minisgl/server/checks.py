"""What the values of command line options must be, in one line each if not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import typer

from minisgl.attention import validate_attn_backend
from minisgl.server.args import version as own_version

Check = Callable[[Any], Any]

LEVELS = ("debug", "info", "warning", "error")


def one_of(*known: str) -> Check:
    def check(value: str) -> str:
        if value not in known:
            names = ", ".join(known)
            raise typer.BadParameter(f"{value!r} is not one of {names}")
        return value

    return check


def attention_backend(value: str) -> str:
    try:
        return validate_attn_backend(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def level(value: str) -> str:
    found: str = one_of(*LEVELS)(value.lower())
    return found


def device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", value):
        raise typer.BadParameter(
            f"{value!r} is not one of auto, cpu, cuda, cuda:N"
        )
    return value


def size(value: int) -> int:
    if value < 1:
        raise typer.BadParameter(f"{value} is not at least 1")
    return value


def key(value: str | None) -> str | None:
    # It travels in a header of HTTP.
    if value is not None and not (
        value.isascii() and value.isprintable() and value and " " not in value
    ):
        raise typer.BadParameter("a key is printable ASCII without spaces")
    return value


def root(value: str) -> str:
    if value and not value.startswith("/"):
        raise typer.BadParameter(f"{value!r} does not begin with a slash")
    return value.rstrip("/")


def version(wanted: bool) -> None:
    if wanted:
        print(f"minisgl {own_version()}")
        raise typer.Exit
