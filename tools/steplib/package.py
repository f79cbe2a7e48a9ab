"""What the modules of a package define, read from source without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tools.steplib.signatures import Params, of_arguments

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """A top-level name of a module: where it is defined and how."""

    path: str
    node: ast.stmt


def decorators(node: ast.ClassDef | Function) -> set[str]:
    """Last names of the decorators: ``dataclass`` for ``@dataclasses.dataclass()``."""
    calls = [
        d.func if isinstance(d, ast.Call) else d for d in node.decorator_list
    ]
    return {ast.unparse(call).rsplit(".", 1)[-1] for call in calls}


def is_record(node: ast.ClassDef) -> bool:
    """Whether the fields make the constructor: a dataclass or a NamedTuple."""
    bases = {ast.unparse(base).rsplit(".", 1)[-1] for base in node.bases}
    return "dataclass" in decorators(node) or "NamedTuple" in bases


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Top-level statements, those under ``if``, ``try`` and ``with`` too."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from statements(getattr(node, name, []))


def assigned(node: ast.stmt) -> list[ast.expr]:
    """Targets of an assignment, none for another statement."""
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


@dataclass
class Package:
    """The modules below one folder; paths are relative to it, as ``kvcache/base.py``.

    `name` is the folder's import name.
    """

    root: Path
    name: str = "minisgl"
    _trees: dict[str, dict[str, ast.stmt]] = field(default_factory=dict)

    def has(self, path: str) -> bool:
        return (self.root / path).is_file()

    def names(self, path: str) -> dict[str, ast.stmt]:
        """Every top-level name of a module -> the statement that binds it."""
        if path not in self._trees:
            tree = ast.parse((self.root / path).read_text(encoding="utf-8"))
            self._trees[path] = dict(self._bindings(tree.body))
        return self._trees[path]

    @staticmethod
    def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
        for node in statements(body):
            if isinstance(node, ast.ClassDef | Function):
                yield node.name, node
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    yield alias.asname or alias.name, node
            for target in assigned(node):
                if isinstance(target, ast.Name):
                    yield target.id, node

    def find(self, path: str, name: str) -> Definition | None:
        """Where `name`, as `path` sees it, is defined; follows imports inside."""
        node = self.names(path).get(name)
        if not isinstance(node, ast.ImportFrom):
            return Definition(path, node) if node else None
        source = self._module(path, node)
        alias = next(a for a in node.names if name in (a.asname, a.name))
        if source is None or alias.name not in self.names(source):
            return Definition(path, node)
        return self.find(source, alias.name)

    def _module(self, path: str, node: ast.ImportFrom) -> str | None:
        parts = (node.module or "").split(".") if node.module else []
        if node.level:
            parts = [*Path(path).parts[: -node.level], *parts]
        elif parts[0] == self.name:
            parts = parts[1:]
        else:
            return None
        stem = "/".join(parts)
        options = [f"{stem}.py", f"{stem}/__init__.py".lstrip("/")]
        return next((option for option in options if self.has(option)), None)

    def lineage(
        self, path: str, node: ast.ClassDef
    ) -> list[tuple[str, ast.ClassDef]]:
        """The class, then its bases that lie in the package, depth first."""
        found = [(path, node)]
        for base in node.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            there = (
                self.find(path, name.id) if isinstance(name, ast.Name) else None
            )
            if there is not None and isinstance(there.node, ast.ClassDef):
                found += self.lineage(there.path, there.node)
        return found

    def view(self, path: str, node: ast.ClassDef) -> ClassView:
        return ClassView([one for _, one in self.lineage(path, node)])


@dataclass(frozen=True)
class ClassView:
    """A class together with what it inherits inside the package."""

    classes: list[ast.ClassDef]  # the class first

    @cached_property
    def methods(self) -> dict[str, Function]:
        return {
            node.name: node
            for cls in reversed(self.classes)
            for node in cls.body
            if isinstance(node, Function)
        }

    @cached_property
    def attributes(self) -> set[str]:
        """Names assigned in class bodies, or to ``self`` in any method."""
        names: set[str] = set()
        for cls in self.classes:
            targets = [t for node in cls.body for t in assigned(node)]
            names.update(t.id for t in targets if isinstance(t, ast.Name))
            names.update(
                node.attr
                for node in ast.walk(cls)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            )
        return names

    def constructor(self) -> Params:
        """What calling the class takes."""
        for at, cls in enumerate(self.classes):
            for node in cls.body:
                if isinstance(node, Function) and node.name == "__init__":
                    return of_arguments(node.args, bound=True)
            if is_record(cls):
                return self._fields(self.classes[at:])
        return Params()

    @staticmethod
    def _fields(classes: list[ast.ClassDef]) -> Params:
        positional: dict[str, bool] = {}
        keyword: dict[str, bool] = {}
        for cls in reversed(classes):
            for node in cls.body:
                if not isinstance(node, ast.AnnAssign) or not is_record(cls):
                    continue
                value = ast.unparse(node.value) if node.value else ""
                if (
                    "ClassVar" in ast.unparse(node.annotation)
                    or "init=False" in value
                ):
                    continue
                calls = value.startswith(("field(", "dataclasses.field("))
                has_default = "default" in value if calls else bool(value)
                only = "kw_only=True" in value or any(
                    "kw_only=True" in ast.unparse(d) for d in cls.decorator_list
                )
                (keyword if only else positional)[ast.unparse(node.target)] = (
                    has_default
                )
        return Params(positional, keyword)
