"""What single keywords of a JSON schema may say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minisgl.structure.regex import check_regex

_LARGEST = 2**53
"""Integers up to here are exact in every reader of JSON."""

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OF_TYPE: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": _BOUNDS,
    "integer": (*_BOUNDS, "multipleOf"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "minProperties",
        "maxProperties",
    ),
    "boolean": (),
    "null": (),
}
_COUNTS = ("Length", "Items", "Properties")
_DATES = ("date", "time", "date-time", "duration")
_NAMES = ("email", "hostname", "ipv4", "ipv6", "uri", "uuid")


def check_counts(schema: Mapping[str, Any], at: str) -> None:
    for kind in _COUNTS:
        for name in (f"min{kind}", f"max{kind}"):
            value = schema.get(name, 0)
            if type(value) is not int or not 0 <= value < 2**31:
                raise bad(f"{at}/{name}", "must be an integer from 0 on")
        low, high = schema.get(f"min{kind}", 0), schema.get(f"max{kind}", 2**31)
        if low > high:
            raise bad(f"{at}/min{kind}", f"is above max{kind}")


def check_string(schema: Mapping[str, Any], at: str) -> None:
    lone = [key for key in ("pattern", "format") if key in schema]
    beside = [k for k in ("minLength", "maxLength", *lone[1:]) if k in schema]
    if lone and beside:
        raise bad(f"{at}/{beside[0]}", f"not supported beside {lone[0]}")
    if "pattern" in schema:
        if not isinstance(schema["pattern"], str):
            raise bad(f"{at}/pattern", "must be a text")
        try:
            check_regex(schema["pattern"], in_json=True)
        except ValueError as error:
            raise bad(f"{at}/pattern", str(error)) from None
    if schema.get("format", "date") not in (*_DATES, *_NAMES):
        known = ", ".join((*_DATES, *_NAMES))
        raise bad(f"{at}/format", f"not supported; known are {known}")


def check_range(
    schema: Mapping[str, Any], at: str, types: frozenset[str]
) -> None:
    for key in (*_BOUNDS, "multipleOf"):
        value = schema.get(key, 0)
        if type(value) not in (int, float) or not abs(value) <= _LARGEST:
            raise bad(f"{at}/{key}", "must be a number, in size up to 2**53")
        if "integer" in types and value != int(value):
            raise bad(f"{at}/{key}", "must be a whole number for an integer")
    step = schema.get("multipleOf", 1)
    if not 1 <= step <= 1000 or ("multipleOf" in schema and "number" in types):
        raise bad(f"{at}/multipleOf", "must be 1 to 1000, and of an integer")
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None and low > high:
        raise bad(f"{at}/minimum", "is above maximum")


def check_depth(value: Any, most: int) -> None:
    """Whether functions that call themselves can walk through all of it."""
    layer = [value]
    for _ in range(most):
        inner = [x for x in layer if isinstance(x, dict | list)]
        parts = [x.values() if isinstance(x, dict) else x for x in inner]
        layer = [item for part in parts for item in part]
    if layer:
        raise bad("#", f"deeper than {most} levels")


def check_numbers(value: Any, place: str) -> None:
    """Whether all numbers in a value are exact in JSON."""
    for number in _numbers_in(value):
        if not abs(number) <= _LARGEST:
            raise bad(place, f"{number!r} is beyond 2**53")


def _numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        for item in items:
            yield from _numbers_in(item)
    elif isinstance(value, int | float):
        yield value


def types_named(schema: Mapping[str, Any], at: str = "#") -> frozenset[str]:
    """The types it names, none if it names none."""
    found = schema.get("type", [])
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or ("type" in schema and not found):
        raise bad(f"{at}/type", "must be the name of a type, or a list of such")
    for name in found:
        if not isinstance(name, str) or name not in OF_TYPE:
            raise bad(f"{at}/type", f"there is no type {show(name)}")
    return frozenset(found)


def types_of(value: Any) -> frozenset[str]:
    """The names of the types of which a value is."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int | float):
        whole = value == int(value)
        return frozenset({"number", "integer"} if whole else {"number"})
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return frozenset({names[type(value)]})


def values_listed(schema: Mapping[str, Any]) -> list[Any] | None:
    """All there are, if the schema lists them."""
    if "const" in schema:
        return [schema["const"]]
    found: list[Any] | None = schema.get("enum")
    return found


def kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that can fit, an integer as a number; empty if any might."""
    values = values_listed(schema)
    if values is not None:
        found = frozenset().union(*(types_of(value) for value in values))
    else:
        found = types_named(schema)
    return found | ({"number"} if "integer" in found else frozenset())


def as_texts(values: Sequence[Any]) -> set[str]:
    """Equal values as equal texts of JSON, where 1 is not true."""
    return {json.dumps(value, sort_keys=True) for value in values}


def show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def bad(at: str, reason: str) -> ValueError:
    return ValueError(f"at {at}: {reason}")
