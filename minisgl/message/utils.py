"""Dataclasses to plain dicts and back, so that nothing has to be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

_TYPE = "__type__"
_ARRAY = "__array__"


def _serialize_any(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [_serialize_any(item) for item in value]
    if isinstance(value, dict):
        return {key: _serialize_any(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return serialize_type(value)
    if hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
        shape = list(array.shape)
        return {_ARRAY: [array.dtype.str, shape, array.tobytes()]}
    raise TypeError(f"a {type(value).__name__} cannot be put into a message")


def serialize_type(self: Any) -> dict[str, Any]:
    """A dataclass as a dict that msgpack can pack.

    Nested dataclasses, lists and dicts are followed. Arrays and CPU tensors
    become their bytes, with dtype and shape.

    Raises:
        TypeError: a value of any other type.
    """
    pairs = ((f.name, getattr(self, f.name)) for f in fields(self))
    content = {name: _serialize_any(value) for name, value in pairs}
    return {_TYPE: type(self).__name__, **content}


def _deserialize_any(cls_map: Mapping[str, Any], data: Any) -> Any:
    if isinstance(data, list):
        return [_deserialize_any(cls_map, item) for item in data]
    if not isinstance(data, dict):
        return data
    if _TYPE in data:
        return deserialize_type(cls_map, data)
    if _ARRAY in data:
        return _make_tensor(*data[_ARRAY])
    return {key: _deserialize_any(cls_map, item) for key, item in data.items()}


def deserialize_type(cls_map: Mapping[str, Any], data: dict[str, Any]) -> Any:
    """The dataclass that `serialize_type` took apart.

    cls_map: the classes that may occur, by name; a module's globals() will do.

    Raises:
        ValueError: the dict names no class of `cls_map`.
    """
    content = dict(data)
    name = content.pop(_TYPE, None)
    found = cls_map.get(name)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise ValueError(f"no message is called {name!r}")
    values = {k: _deserialize_any(cls_map, v) for k, v in content.items()}
    return found(**values)


def _make_tensor(dtype: str, shape: list[int], content: bytes) -> Any:
    # Here, not above: whoever only sends arrays need not load torch.
    import torch

    array = np.frombuffer(content, dtype=np.dtype(dtype)).reshape(shape)
    # A copy, for the bytes of a message may not be written to.
    return torch.from_numpy(array.copy())
