"""Messages between processes that were not updated at the same moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from minisgl.message.utils import deserialize_type, serialize_type

__all__ = ["VERSION", "decode", "encode"]

VERSION = (1, 0)
"""Major and minor number. A new minor version adds fields that have defaults or
whole messages; whatever else changes makes a new major version."""

_VERSION, _TYPE = "__version__", "__type__"


def encode(msg: Any, version: tuple[int, int] = VERSION) -> dict[str, Any]:
    """As `serialize_type`, with [major, minor] under `__version__`."""
    return {_VERSION: list(version), **serialize_type(msg)}


def decode(
    cls_map: Mapping[str, Any],
    data: dict[str, Any],
    version: tuple[int, int] = VERSION,
) -> Any:
    """The message that `encode` made, in this version or another minor one.

    A newer sender's fields that the class does not have are dropped, also in
    messages inside the message; an older sender's missing ones get their
    defaults. From a sender that is not newer, an unknown field is an error.

    Raises:
        ValueError: no version, another major one, or as `deserialize_type`.
    """
    if not isinstance(data, dict):
        raise ValueError(f"a {type(data).__name__} is no message")
    content = dict(data)
    theirs = content.pop(_VERSION, None)
    match theirs:
        case [int(major), int(minor)]:
            pass
        case _:
            raise ValueError(f"{theirs!r} is no version of a message")
    if major != version[0]:
        raise ValueError(
            f"a message of version {major}.{minor} cannot be read by version "
            f"{version[0]}.{version[1]}; update the older process"
        )
    if minor > version[1]:
        content = _without_unknown(cls_map, content)
    return deserialize_type(cls_map, content)


def _without_unknown(cls_map: Mapping[str, Any], data: Any) -> Any:
    """The same data without fields that the classes of `cls_map` do not have."""
    if isinstance(data, list):
        return [_without_unknown(cls_map, item) for item in data]
    if not isinstance(data, dict):
        return data
    found = cls_map.get(data.get(_TYPE, ""))
    known = set(data)
    if isinstance(found, type) and is_dataclass(found):
        known = {_TYPE} | {field.name for field in fields(found)}
    return {
        key: _without_unknown(cls_map, value)
        for key, value in data.items()
        if key in known
    }
