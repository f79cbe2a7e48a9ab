"""Dataclasses to plain dicts and back, so that nothing has to be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

_TYPE = "__type__"
_ARRAY = "__array__"


def _serialize_any(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [_serialize_any(item) for item in value]
    if isinstance(value, dict):
        return {_key(key): _serialize_any(value[key]) for key in value}
    if is_dataclass(value) and not isinstance(value, type):
        return serialize_type(value)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        # The bytes of an array of objects would be addresses.
        if array.dtype.kind in "biuf":
            content = array.tobytes()
            return {_ARRAY: [array.dtype.str, list(array.shape), content]}
    raise TypeError(f"a {type(value).__name__} cannot be put into a message")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the key {key!r} of a dict in a message is no str")
    # A client's dict must not turn into a message on the other side.
    if key in (_TYPE, _ARRAY):
        raise ValueError(f"a dict in a message may not have the key {key!r}")
    return key


def serialize_type(self: Any) -> dict[str, Any]:
    """A dataclass as a dict that msgpack can pack.

    The dict has the class's name under `__type__`, then the fields. Nested
    dataclasses, lists and dicts are followed; a tuple becomes a list. Arrays
    and CPU tensors of numbers become {"__array__": [dtype, shape, bytes]}.

    Raises:
        TypeError: a value of any other type, or a key that is no str.
        ValueError: a key of a dict that marks a message or an array.
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
        return _make_tensor(data[_ARRAY])
    return {key: _deserialize_any(cls_map, item) for key, item in data.items()}


def deserialize_type(cls_map: Mapping[str, Any], data: dict[str, Any]) -> Any:
    """The dataclass that `serialize_type` took apart.

    It is made by calling the class, so what the class checks is checked again.

    cls_map: the classes that may occur, by name; a module's globals() will do.

    Raises:
        ValueError: the dict names no dataclass of `cls_map`, its fields are
            not that class's, or a value is refused.
    """
    if not isinstance(data, dict):
        raise ValueError(f"a {type(data).__name__} is no message")
    content = dict(data)
    name = content.pop(_TYPE, None)
    found = cls_map.get(name) if isinstance(name, str) else None
    if not (isinstance(found, type) and is_dataclass(found)):
        raise ValueError(f"no message is called {name!r}")
    values = {k: _deserialize_any(cls_map, v) for k, v in content.items()}
    try:
        return found(**values)
    except TypeError as error:  # a field too few or too many
        raise ValueError(f"no {name}: {error}") from None


def _make_tensor(parts: Any) -> Any:
    # Here, not above: whoever only sends arrays need not load torch.
    import torch

    try:
        dtype, shape, content = parts
        array = np.frombuffer(content, np.dtype(dtype)).reshape(shape)
        if list(array.shape) != shape:  # a length of -1 would be any
            raise ValueError(f"its shape cannot be {shape}")
        # A copy, for the bytes of a message may not be written to.
        return torch.from_numpy(array.copy())
    except (TypeError, ValueError) as error:
        raise ValueError(f"no array: {error}") from None
