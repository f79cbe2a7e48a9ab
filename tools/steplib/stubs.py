"""Named pieces of Python source: find them, show them, empty them.

A target reads ``kvcache/radix_cache.py::RadixPrefixCache.evict``; the path is
inside ``minisgl/``, or ``stage:engine.py`` for a file beside the stage's main.py.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

STAGE = "stage:"
_WIDTH = 80
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def parse_target(target: str) -> tuple[str, str]:
    """Split ``PATH::NAME``.

    Raises:
        ValueError: the text has not that form.
    """
    path, mark, name = target.partition("::")
    if (
        not mark
        or not path
        or not all(p.isidentifier() for p in name.split("."))
    ):
        raise ValueError(
            f"{target!r}: a target reads path/file.py::Class.method"
        )
    return path, name


def target_file(path: str, stage: Path, tree: dict[str, Path]) -> Path:
    """The file a target's path means for the chapter in folder `stage`.

    `tree` maps package paths to files, as `Book.tree` gives it.

    Raises:
        ValueError: no such file in the stage folder or in the tree.
    """
    if path.startswith(STAGE):
        found: Path | None = stage / path.removeprefix(STAGE)
    else:
        found = tree.get(path)
    if found is None or not found.is_file():
        raise ValueError(f"{path}: no such file in {stage.name} or its package")
    return found


def stub_source(text: str, names: list[str]) -> str:
    """Replace the bodies of the named functions by ``raise NotImplementedError``.

    Decorators, signatures, docstrings and every other byte stay as they are. A name
    is ``function`` or ``Class.method``; a property's getter and setter share one.

    Raises:
        ValueError: a name is not a function or method of `text`.
    """
    edits: list[tuple[int, int, str]] = []
    layout = _Layout(text)
    for name in dict.fromkeys(names):
        nodes = [n for n in _named(text, name) if isinstance(n, _Function)]
        nodes = [n for n in nodes if not _is_overload(n)]
        if not nodes:
            raise ValueError(f"{name}: no such function or method to stub")
        edits += [_stub(text, node, name, layout) for node in nodes]
    edits.sort(key=lambda edit: (edit[0], -edit[1]))
    pieces, done = [], 0
    for start, end, new in edits:
        if start < done:  # inside a function that is stubbed as a whole
            continue
        pieces += [text[done:start], new]
        done = end
    return "".join([*pieces, text[done:]])


def extract_source(text: str, name: str) -> tuple[int, int, str]:
    """First line, last line and source of a definition, decorators and the comment
    lines right above included. Lines count from 1; indentation is kept.

    `name` is a class, function, method or assigned name (``X`` or ``Class.x``).

    Raises:
        ValueError: `text` does not define `name`.
    """
    nodes = _named(text, name)
    if not nodes:
        raise ValueError(f"{name}: not defined there")
    node = next((n for n in nodes if not _is_overload(n)), nodes[0])
    decorators = getattr(node, "decorator_list", [])
    start = min(n.lineno for n in [node, *decorators])
    lines = split_lines(text)
    while start > 1 and lines[start - 2].lstrip().startswith("#"):
        start -= 1
    end = node.end_lineno or node.lineno
    return start, end, "".join(lines[start - 1 : end])


def _named(text: str, name: str) -> list[ast.stmt]:
    """Every statement that defines the dotted `name`, in order."""
    found: list[ast.stmt] = list(ast.parse(text).body)
    for depth, part in enumerate(name.split(".")):
        inner = found if depth == 0 else [s for n in found for s in _body(n)]
        found = [s for s in _flat(inner) if part in _binds(s)]
    return found


def _body(node: ast.stmt) -> list[ast.stmt]:
    return node.body if isinstance(node, _Function | ast.ClassDef) else []


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a scope, those under its if, try and with included."""
    for node in body:
        yield node
        if not isinstance(node, _Function | ast.ClassDef):
            for part in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _flat(handler.body)


def _binds(node: ast.stmt) -> set[str]:
    if isinstance(node, _Function | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        return set()
    return {
        n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)
    }


def _is_overload(node: ast.stmt) -> bool:
    names = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
    return any(n.split(".")[-1] == "overload" for n in names)


def split_lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends one, as in Python's grammar."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


class _Layout:
    """Where lines start, and where a function's header ends."""

    def __init__(self, text: str) -> None:
        self.lines = split_lines(text)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self._tokens = list(
            tokenize.generate_tokens(io.StringIO(text).readline)
        )

    def after(self, node: _Function) -> int:
        """Offset just behind the colon that ends the header of `node`."""
        depth = 0
        for token in self._tokens:
            if token.start < (node.lineno, 0) or token.type != tokenize.OP:
                continue
            depth += (token.string in "([{") - (token.string in ")]}")
            if token.string == ":" and depth == 0:
                return self.starts[token.end[0] - 1] + token.end[1]
        raise ValueError(f"line {node.lineno}: no end of the function's header")

    def line_end(self, offset: int) -> int:
        """Offset of the end of the line that `offset` is in, line break included."""
        at = min(bisect_right(self.starts, offset), len(self.lines))
        return self.starts[at]

    def offset(self, line: int, utf8_column: int) -> int:
        """Text offset of a position as `ast` gives it (columns in bytes)."""
        head = self.lines[line - 1].encode()[:utf8_column].decode()
        return self.starts[line - 1] + len(head)


def _stub(
    text: str, node: _Function, name: str, layout: _Layout
) -> tuple[int, int, str]:
    """(start, end, replacement) of the body of `node` without its docstring."""
    first, end = node.body[0], node.end_lineno or node.lineno
    start = layout.after(node)
    if ast.get_docstring(node, clean=False) is not None:
        line = first.end_lineno or first.lineno
        start = layout.offset(line, first.end_col_offset or 0)
    rest = text[start : layout.line_end(start)]
    margin = " " * (node.col_offset + 4)
    if first.lineno > node.lineno and first.col_offset > node.col_offset:
        margin = " " * first.col_offset
    if rest.lstrip().startswith("#"):  # a comment on the header line is kept
        start += len(rest.rstrip("\r\n"))
    end = _comments_below(layout.lines, end, len(margin))
    stop = layout.starts[end]
    newline = "\n" if text[:stop].endswith("\n") else ""
    call = f'{margin}raise NotImplementedError("write {name}")'
    if len(call) > _WIDTH:
        call = f'{margin}raise NotImplementedError("write {node.name}")'
    return start, stop, f"\n{call}{newline}"


def _comments_below(lines: list[str], end: int, indent: int) -> int:
    """Extend `end` over comments that stand in the body below its last statement."""
    at = end
    while at < len(lines):
        line = lines[at]
        stripped = line.strip()
        at += 1
        if stripped and not (
            stripped.startswith("#")
            and len(line) - len(line.lstrip()) >= indent
        ):
            break
        if stripped:
            end = at
    return end
