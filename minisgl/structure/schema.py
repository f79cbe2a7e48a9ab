"""Which JSON schemas a grammar can keep to, keyword by keyword.

A grammar's compiler passes over keywords that it does not know, and answers
would break them. So each is honoured or refused here, with its place.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from itertools import combinations
from typing import Any

from minisgl.structure.keywords import (
    OF_TYPE,
    as_texts,
    bad,
    check_counts,
    check_depth,
    check_numbers,
    check_range,
    check_string,
    kinds,
    show,
    types_named,
    types_of,
    values_listed,
)

MOST_TEXT = 2**16
"""Characters of a schema, or of any other description of a form."""

_DEEPEST = 128
_MOST_PROPERTIES, _MOST_COUNTED = 512, 32
"""Of an object, and of one that counts them. Beyond, the time to compile grows
much faster than their number, and the forms of others wait for that long."""

_MOST_STEPS = 2**16
"""To tell the branches of all `oneOf` apart, at the door where others wait."""

_TEXTS = ("title", "description", "default", "examples", "$comment")
_MARKS = ("deprecated", "readOnly", "writeOnly", "discriminator")
_HEADS = ("$schema", "$id", "$defs", "definitions")
_NOTES = frozenset((*_TEXTS, *_MARKS, *_HEADS))
"""Keywords that say nothing about what is valid."""

_BODIES = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")
"""Each of them is a schema by itself: no condition may stand beside it."""

_NEUTRAL = {
    "uniqueItems": False,
    "unevaluatedItems": True,
    "unevaluatedProperties": True,
}
"""Values of keywords that ask for nothing."""


@lru_cache(maxsize=256)
def check_schema_text(text: str) -> None:
    """As `check_schema`, of a schema that is written as JSON."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    check_schema(schema)


def check_schema(schema: Any) -> None:
    """Whether everything that a schema asks for can be kept to.

    Raises:
        ValueError: what cannot, with its place as a JSON pointer (RFC 6901) in
            its form for URIs, in which the whole is `#`.
    """
    check_depth(schema, _DEEPEST)
    if len(json.dumps(schema)) > MOST_TEXT:
        raise bad("#", f"more than {MOST_TEXT} characters")
    checker = _Checker(schema)
    try:
        checker.check(schema, "#", ())
        checker.check_exclusive()
    except RecursionError:
        raise bad("#", "references lead too deep into each other") from None


class _Checker:
    """Walks a schema; what it refers to is checked where it is referred to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: set[str] = set()
        self._exclusive: list[tuple[str, list[Any]]] = []
        self._steps = 0

    def check(self, schema: Any, at: str, chain: tuple[str, ...]) -> None:
        """One schema and all in it.

        at: its place.
        chain: the references that have led here, with nothing between them.
        """
        if schema is True:
            return
        if schema is False:
            raise bad(at, "nothing is valid here")
        if not isinstance(schema, dict):
            raise bad(at, f"a schema is an object, not {show(schema)}")
        asked = [
            key
            for key in schema
            if key not in _NOTES and not key.startswith("x-")
        ]
        bodies = [key for key in asked if key in _BODIES]
        if bodies:
            self._check_body(schema, at, bodies[0], asked, chain)
        else:
            self._check_typed(schema, at, asked)

    def _check_body(
        self,
        schema: dict[str, Any],
        at: str,
        body: str,
        asked: list[str],
        chain: tuple[str, ...],
    ) -> None:
        place = f"{at}/{body}"
        beside = {body, "type"} if body in ("enum", "const") else {body}
        for key in asked:
            if key not in beside:
                raise bad(f"{at}/{key}", f"not supported beside {body}")
        value = schema[body]
        if body == "$ref":
            self._follow(value, place, chain)
        elif body in ("enum", "const"):
            self._check_values(schema, at, body)
        else:
            self._check_branches(value, body, place)

    def _follow(self, ref: Any, place: str, chain: tuple[str, ...]) -> None:
        target = self._target(ref, place)
        if ref in chain:
            raise bad(place, f"{ref} leads to itself")
        if ref not in self._known:
            self._known.add(ref)  # first, for it may be inside of itself
            self.check(target, ref, (*chain, ref))

    def _target(self, ref: Any, place: str) -> Any:
        """What a reference names."""
        if not isinstance(ref, str) or not (ref + "/").startswith("#/"):
            raise bad(place, f"only references as #/$defs/name, not {ref!r}")
        found = self._root
        for part in ref.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal():
                found = found[int(name)] if int(name) < len(found) else None
            else:
                found = found.get(name) if isinstance(found, dict) else None
            if found is None:
                raise bad(place, f"there is no {ref}")
        return found

    def _check_values(self, schema: dict[str, Any], at: str, body: str) -> None:
        one = body == "const"
        values = [schema[body]] if one else schema[body]
        if not isinstance(values, list) or not values:
            raise bad(f"{at}/{body}", "must be a list that is not empty")
        types = types_named(schema, at)
        for i, value in enumerate(values):
            place = f"{at}/{body}" if one else f"{at}/{body}/{i}"
            check_numbers(value, place)
            if types and not types & types_of(value):
                raise bad(place, f"{show(value)} is not of the type beside it")

    def _check_branches(self, value: Any, body: str, place: str) -> None:
        if not isinstance(value, list) or not value:
            raise bad(place, "must be a list that is not empty")
        if body == "allOf" and len(value) > 1:
            raise bad(place, "only one schema in it is supported")
        for i, branch in enumerate(value):
            self.check(branch, f"{place}/{i}", ())
        if body == "oneOf":
            self._exclusive.append((place, value))

    def check_exclusive(self) -> None:
        """Whether of every `oneOf` at most one branch can hold.

        Not before all is checked: a branch may lead back to what is around it.
        """
        for place, branches in self._exclusive:
            for i, j in combinations(range(len(branches)), 2):
                apart = self._apart(branches[i], branches[j], 0)
                if self._steps > _MOST_STEPS:
                    raise bad(place, "too much to tell apart; use anyOf")
                if not apart:
                    reason = f"may hold together with number {i}; use anyOf"
                    raise bad(f"{place}/{j}", reason)

    def _apart(self, one: Any, other: Any, depth: int) -> bool:
        """Whether it is plain that nothing fits two schemas; both are good."""
        one, other = self._resolve(one), self._resolve(other)
        self._steps += 1
        too_far = depth > _DEEPEST or self._steps > _MOST_STEPS
        if too_far or one is True or other is True:
            return False
        values, others = values_listed(one), values_listed(other)
        self._steps += len(values or ()) + len(others or ())
        if values is not None and others is not None:
            return as_texts(values).isdisjoint(as_texts(others))
        types = kinds(one), kinds(other)
        if types[0] and types[1] and not types[0] & types[1]:
            return True
        if types[0] != {"object"} or types[1] != {"object"}:
            return False
        needed = [set(s.get("required", ())) for s in (one, other)]
        return any(
            self._apart(one["properties"][k], other["properties"][k], depth + 1)
            for k in needed[0] & needed[1]
        )

    def _resolve(self, schema: Any) -> Any:
        while isinstance(schema, dict) and "$ref" in schema:
            schema = self._target(schema["$ref"], "#")
        return schema

    def _check_typed(
        self, schema: dict[str, Any], at: str, asked: list[str]
    ) -> None:
        types = types_named(schema, at)
        for key in asked:
            owners = {t for t in OF_TYPE if key in OF_TYPE[t]}
            if key == "type" or schema[key] == _NEUTRAL.get(key, ...):
                continue
            if not owners:
                raise bad(f"{at}/{key}", "this keyword is not supported")
            if not types & owners:
                kinds = " or ".join(sorted(owners))
                raise bad(f"{at}/{key}", f"needs type {kinds} beside it")
        check_counts(schema, at)
        if "string" in types:
            check_string(schema, at)
        if types & {"number", "integer"}:
            check_range(schema, at, types)
        if "array" in types:
            self._check_array(schema, at)
        if "object" in types:
            self._check_object(schema, at)

    def _check_array(self, schema: dict[str, Any], at: str) -> None:
        items, first = schema.get("items", True), schema.get("prefixItems", [])
        if isinstance(items, list):
            raise bad(f"{at}/items", "a list of schemas goes in prefixItems")
        if items is not False:
            self.check(items, f"{at}/items", ())
        if not isinstance(first, list) or (
            "prefixItems" in schema and not first
        ):
            raise bad(f"{at}/prefixItems", "must be a list that is not empty")
        for i, item in enumerate(first):
            self.check(item, f"{at}/prefixItems/{i}", ())
        if first and schema.get("maxItems", math.inf) < len(first):
            raise bad(f"{at}/maxItems", "is less than there are prefixItems")

    def _check_object(self, schema: dict[str, Any], at: str) -> None:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, dict):
            raise bad(f"{at}/properties", "must be an object")
        if not isinstance(required, list):
            raise bad(f"{at}/required", "must be a list")
        counted = "minProperties" in schema or "maxProperties" in schema
        most = _MOST_COUNTED if counted else _MOST_PROPERTIES
        if len(properties) > most:
            raise bad(f"{at}/properties", f"only {most} are supported here")
        for name, value in properties.items():
            place = name.replace("~", "~0").replace("/", "~1")
            self.check(value, f"{at}/properties/{place}", ())
        for i, name in enumerate(required):
            if not isinstance(name, str) or name not in properties:
                reason = f"{show(name)} is not among the properties"
                raise bad(f"{at}/required/{i}", reason)
        others = schema.get("additionalProperties", True)
        if others is not False:
            self.check(others, f"{at}/additionalProperties", ())
            if schema.get("minProperties", 0) > 1:
                reason = "above 1 needs additionalProperties: false beside it"
                raise bad(f"{at}/minProperties", reason)
