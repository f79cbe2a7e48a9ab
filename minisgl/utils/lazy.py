"""Packages that load their files when somebody asks for what is in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, files: Mapping[str, Sequence[str]]
) -> Callable[[str], Any]:
    """The `__getattr__` of a package, which Python calls for unknown names.

    package: its ``__name__``.
    files: the names that each of its files offers, by the file's name.
    """
    home = {name: file for file, names in files.items() for name in names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}"
            )
        return getattr(import_module(f"{package}.{home[name]}"), name)

    return load
