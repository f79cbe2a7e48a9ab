"""Parameters of functions and constructors, and whether one list can stand for another.

Everything is read from source with ``ast``; nothing is imported or run.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Params:
    """Parameters without ``self`` or ``cls``: name -> whether it has a default."""

    positional: dict[str, bool] = field(default_factory=dict)
    keyword: dict[str, bool] = field(default_factory=dict)
    var_positional: bool = False
    var_keyword: bool = False

    @property
    def names(self) -> dict[str, bool]:
        return {**self.positional, **self.keyword}

    def without(self, names: set[str]) -> Params:
        """The same list with some parameters taken out."""
        kept = {n: d for n, d in self.positional.items() if n not in names}
        rest = {n: d for n, d in self.keyword.items() if n not in names}
        return Params(kept, rest, self.var_positional, self.var_keyword)


def of_arguments(args: ast.arguments, bound: bool) -> Params:
    """Parameters of a definition; `bound` drops the first one (``self``, ``cls``)."""
    listed = [*args.posonlyargs, *args.args]
    required = len(listed) - len(args.defaults)
    positional = {a.arg: i >= required for i, a in enumerate(listed)}
    if bound and listed:
        del positional[listed[0].arg]
    pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    keyword = {a.arg: default is not None for a, default in pairs}
    return Params(
        positional, keyword, args.vararg is not None, args.kwarg is not None
    )


def of_text(signature: str, bound: bool) -> Params:
    """Parameters of a signature such as ``(self, x: int = 0) -> None``."""
    function = ast.parse(f"def f{signature}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    return of_arguments(function.args, bound)


def difference(theirs: Params, ours: Params) -> str:
    """Why a call written for `theirs` may fail on `ours`; empty when none can.

    Positional parameters keep name and place; what they may omit we let them omit;
    what only we have needs a default.
    """
    our_places = list(ours.positional)
    for place, name in enumerate(theirs.positional):
        if place < len(our_places):
            if our_places[place] != name:
                return f"parameter {place + 1} is {our_places[place]!r}, not {name!r}"
        elif not ours.var_positional:
            return f"parameter {name!r} is missing"
    for name in theirs.keyword:
        if name not in ours.names and not ours.var_keyword:
            return f"keyword {name!r} is missing"
    for name, has_default in theirs.names.items():
        if has_default and ours.names.get(name) is False:
            return f"parameter {name!r} has no default"
    for name, has_default in ours.names.items():
        if name not in theirs.names and not has_default:
            return f"extra parameter {name!r} has no default"
    if theirs.var_positional and not ours.var_positional:
        return "*args is missing"
    if theirs.var_keyword and not ours.var_keyword:
        return "**kwargs is missing"
    return ""
