"""Does our package offer upstream's names with parameters that fit?

Every difference is a `Finding`; `problems` sets them against the reasons in
``tools/upstream_reasons.toml``, where a key may be a pattern (``*::_[!_]*``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tools.steplib.package import ClassView, Function, Package, decorators
from tools.steplib.signatures import Params, difference, of_arguments, of_text

# What every Python object has, so that its absence from a class body means nothing;
# __post_init__ is how a dataclass does its work, nobody calls it.
_EVERYWHERE = {
    "__repr__",
    "__str__",
    "__new__",
    "__eq__",
    "__hash__",
    "__post_init__",
}
_PROPERTIES = {"property", "cached_property"}


@dataclass(frozen=True)
class Finding:
    """Something of upstream that is ``missing`` here or ``changed``."""

    kind: str
    key: str
    what: str


def compare(theirs: Mapping[str, Any], ours: Package) -> list[Finding]:
    """All differences; `theirs` maps module paths to facts as in upstream.json."""
    found: list[Finding] = []
    for path, module in theirs.items():
        if ours.has(path):
            found += _module(path, module, theirs, ours)
        else:
            found.append(Finding("missing", path, "no such module here"))
    return found


def _module(
    path: str,
    module: Mapping[str, Any],
    theirs: Mapping[str, Any],
    ours: Package,
) -> Iterator[Finding]:
    for name, fact in module["functions"].items():
        here = ours.find(path, name)
        key = f"{path}::{name}"
        if here is None:
            yield Finding("missing", key, "no such function here")
        elif not isinstance(here.node, Function):
            yield Finding("changed", key, "is not a plain function here")
        elif text := difference(
            of_text(fact["signature"], bound=False),
            of_arguments(here.node.args, bound=False),
        ):
            yield Finding("changed", key, text)
    for name, fact in module["classes"].items():
        here = ours.find(path, name)
        key = f"{path}::{name}"
        if here is None:
            yield Finding("missing", key, "no such class here")
        elif not isinstance(here.node, ast.ClassDef):
            yield Finding("changed", key, "is not a plain class here")
        else:
            view = ours.view(here.path, here.node)
            yield from _class(key, fact, theirs, view)
    for name in module["exports"]:
        known = name in module["functions"] or name in module["classes"]
        if not known and name not in ours.names(path):
            yield Finding("missing", f"{path}::{name}", "not exported here")


def _class(
    key: str,
    fact: Mapping[str, Any],
    theirs: Mapping[str, Any],
    view: ClassView,
) -> Iterator[Finding]:
    constructor = view.constructor()
    known = {*view.attributes, *view.methods, *constructor.names}
    for name in fact["fields"]:
        if name not in known:
            yield Finding("missing", f"{key}.{name}", "no such field here")
    wanted = _constructor(fact, theirs)
    if wanted is not None:
        gone = (
            set()
            if "__init__" in fact["methods"]
            else set(wanted.names) - known
        )
        if text := difference(wanted.without(gone), constructor):
            yield Finding("changed", f"{key}.__init__", text)
    for name, method in fact["methods"].items():
        if name != "__init__" and name not in _EVERYWHERE:
            yield from _method(f"{key}.{name}", method, view, name)


def _method(
    key: str, fact: Mapping[str, Any], view: ClassView, name: str
) -> Iterator[Finding]:
    here = view.methods.get(name)
    is_value = bool(_PROPERTIES & set(fact["decorators"]))
    if here is None:
        if name not in view.attributes:
            yield Finding("missing", key, "no such method here")
        elif not is_value:
            yield Finding("changed", key, "a method there, an attribute here")
        return
    if is_value != bool(_PROPERTIES & decorators(here)):
        there, now = (
            ("property", "method") if is_value else ("method", "property")
        )
        yield Finding("changed", key, f"a {there} there, a {now} here")
        return
    text = difference(
        of_text(fact["signature"], "staticmethod" not in fact["decorators"]),
        of_arguments(here.args, "staticmethod" not in decorators(here)),
    )
    if text:
        yield Finding("changed", key, text)


def _constructor(
    fact: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Params | None:
    """Upstream's constructor, None where it is not the class's own."""
    if init := fact["methods"].get("__init__"):
        return of_text(init["signature"], bound=True)
    if not _is_record(fact):
        return None
    positional: dict[str, bool] = {}
    for name, entry in _fields(fact, theirs).items():
        default = entry["default"]
        if default is None or "init=False" not in default:
            positional[name] = default is not None
    return Params(positional)


def _is_record(fact: Mapping[str, Any]) -> bool:
    marks = [d.partition("(")[0] for d in fact["decorators"]]
    return "dataclass" in marks or "NamedTuple" in fact["bases"]


def _fields(
    fact: Mapping[str, Any], theirs: Mapping[str, Any]
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for base in fact["bases"]:
        for module in theirs.values():
            if (parent := module["classes"].get(base)) and _is_record(parent):
                fields.update(_fields(parent, theirs))
                break
    return {**fields, **fact["fields"]}


def problems(
    found: list[Finding], reasons: Mapping[str, Mapping[str, str]], newest: int
) -> list[str]:
    """What must be mended: a difference without reason, a reason without difference.

    `newest` is the last chapter here: what "arrives in chNN" must be there by then.
    """
    lines: list[str] = []
    used: set[tuple[str, str]] = set()
    for finding in found:
        table = reasons.get(finding.kind, {})
        matching = [k for k in table if _matches(k, finding.key)]
        used.update((finding.kind, key) for key in matching)
        late = [table[key] for key in matching if _overdue(table[key], newest)]
        if not matching:
            lines.append(f"{finding.key}: {finding.kind}: {finding.what}")
        elif late:
            lines.append(
                f"{finding.key}: {late[0]!r}, but that chapter is here"
            )
    for kind in ("missing", "changed"):
        stale = [
            key for key in reasons.get(kind, {}) if (kind, key) not in used
        ]
        lines += [
            f"{key}: listed as {kind} but is not; delete it" for key in stale
        ]
    return sorted(lines)


def _matches(pattern: str, key: str) -> bool:
    return pattern == key or ("*" in pattern and fnmatchcase(key, pattern))


def _overdue(reason: str, newest: int) -> bool:
    match = re.fullmatch(r"arrives in ch(\d\d)", reason)
    return match is not None and int(match[1]) <= newest
