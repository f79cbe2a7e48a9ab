"""What one Python file imports and defines, read from its syntax tree alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MODULE = re.compile(r"\.{0,3}[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_INIT = "__init__.py"
_SCOPES = (
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(frozen=True)
class Import:
    """``from MODULE import NAMES`` with `level` leading dots; no names: plain."""

    line: int
    module: str
    level: int = 0
    names: tuple[str, ...] = ()


@dataclass
class Facts:
    """Imports (wherever they stand), top-level names and module-like strings."""

    imports: list[Import] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    parity: bool = False
    error: tuple[int, str] | None = None


class Sources:
    """Texts and facts of files, each read and parsed once."""

    def __init__(self) -> None:
        self._texts: dict[Path, str] = {}
        self._facts: dict[Path, Facts] = {}

    def text(self, path: Path) -> str:
        """The text of `path`; empty when there is no such file."""
        if path not in self._texts:
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, IsADirectoryError):
                text = ""
            self._texts[path] = text
        return self._texts[path]

    def facts(self, path: Path) -> Facts:
        """The facts of `path`; those of an empty file if it is not Python.

        A missing file is a finding of its own: it counts as defining anything.
        """
        if path not in self._facts and not path.is_file():
            self._facts[path] = Facts(names={"__getattr__"})
        if path not in self._facts:
            is_python = path.suffix == ".py"
            self._facts[path] = (
                read_facts(self.text(path)) if is_python else Facts()
            )
        return self._facts[path]


def read_facts(text: str) -> Facts:
    """Parse `text`; a syntax error is a fact too (line and message)."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return Facts(error=(error.lineno or 1, error.msg))
    facts = Facts(names=set(_bound(tree.body)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            facts.imports += [Import(node.lineno, a.name) for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            module = node.module or ""
            facts.imports.append(Import(node.lineno, module, node.level, names))
        elif isinstance(node, ast.Global):
            facts.names.update(node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if len(node.value) < 100 and _MODULE.fullmatch(node.value):
                facts.strings.add(node.value)
        elif isinstance(node, ast.Call):
            facts.imports += _dynamic(node)
        elif isinstance(node, ast.Attribute) and node.attr == "parity":
            facts.parity |= ast.unparse(node.value).endswith("mark")
    return facts


def _dynamic(node: ast.Call) -> list[Import]:
    """``import_module("a.b")`` with a literal is an import like any other."""
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    called = node.func.id if isinstance(node.func, ast.Name) else called
    if (
        called not in {"import_module", "__import__", "importorskip"}
        or not node.args
    ):
        return []
    first = node.args[0]
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return []
    if first.value.startswith("."):
        return []
    return [Import(node.lineno, first.value)]


def _bound(body: list[ast.stmt]) -> Iterator[str]:
    """Names that the statements of a module bind, nested blocks included."""
    for node in body:
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            yield node.name
        elif isinstance(node, ast.Import):
            yield from (
                a.asname or a.name.partition(".")[0] for a in node.names
            )
        elif isinstance(node, ast.ImportFrom):
            yield from (a.asname or a.name for a in node.names)
        elif not (isinstance(node, ast.AnnAssign) and node.value is None):
            yield from _stored(node)


def _stored(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
        elif isinstance(child, ast.stmt):
            yield from _bound([child])
        elif not isinstance(child, _SCOPES):
            yield from _stored(child)


class Modules:
    """The modules of a package given as package path -> file.

    A dotted name is always absolute and starts with `package`.
    """

    def __init__(
        self, package: str, tree: dict[str, Path], sources: Sources
    ) -> None:
        self.package = package
        self.tree = tree
        self._sources = sources
        parents = {str(p) for path in tree for p in Path(path).parents}
        self._folders = parents - {"."}

    def find(self, module: str) -> str | None:
        """Package path of a module; ``folder/`` for one without __init__.py."""
        inner = module.split(".")[1:]
        stem = "/".join(inner)
        for path in ([f"{stem}.py"] if stem else []) + [
            "/".join([*inner, _INIT])
        ]:
            if path in self.tree:
                return path
        if stem in self._folders or not stem:
            return f"{stem}/"
        return None

    def defines(self, module: str, name: str) -> bool:
        """Whether ``from module import name`` would find `name`."""
        if name == "*" or self.find(f"{module}.{name}") is not None:
            return True
        return self._binds(module, name, set())

    def _binds(self, module: str, name: str, seen: set[str]) -> bool:
        path = self.find(module)
        if path is None or path.endswith("/") or module in seen:
            return False
        seen.add(module)
        facts = self._sources.facts(self.tree[path])
        if name in facts.names or "__getattr__" in facts.names:
            return True
        stars = (i for i in facts.imports if "*" in i.names)
        targets = (self.absolute(i, path) for i in stars)
        return any(t and self._binds(t, name, seen) for t in targets)

    def source_of(self, path: str, name: str) -> str:
        """Package path of the file that `path` imports `name` from, or `path`."""
        for item in self._sources.facts(self.tree[path]).imports:
            module = self.absolute(item, path) if name in item.names else None
            if module is not None and self.inside(module):
                found = self.find(module)
                if found is not None and not found.endswith("/"):
                    return found
        return path

    def absolute(self, item: Import, path: str | None) -> str | None:
        """The absolute module of an import in package file `path`.

        None when the dots lead out of the package, or there are dots in a file
        outside it (`path` None).
        """
        if item.level == 0:
            return item.module
        if path is None:
            return None
        parts = [self.package, *Path(path).parent.parts]
        if item.level > len(parts):
            return None
        base = parts[: len(parts) - item.level + 1]
        return ".".join([*base, item.module] if item.module else base)

    def inside(self, module: str | None) -> bool:
        """Whether `module` belongs to the package."""
        return module is not None and module.partition(".")[0] == self.package

    def reached(self, item: Import, path: str | None) -> Iterator[str]:
        """Package files that an import runs: parents, the module, submodules."""
        module = self.absolute(item, path)
        if module is None or not self.inside(module):
            return
        parts = module.split(".")
        dotted = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
        for name in [
            *dotted,
            *(f"{module}.{n}" for n in item.names if n != "*"),
        ]:
            found = self.find(name)
            if found is not None and not found.endswith("/"):
                yield found
