"""Wrong versions of a chapter's code: planned ones and randomly drawn ones."""

from __future__ import annotations

import ast
import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

from tools.steplib.book import Book, Chapter
from tools.steplib.stubs import STAGE

_COMPARE = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"), ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
}  # fmt: skip
_ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+")}
_BOOLEAN = {ast.And: ("and", "or"), ast.Or: ("or", "and")}
_KEYS = ("path", "find", "replace", "why")


class MutantError(ValueError):
    """A planned mutant cannot be applied; the text says which and why."""


@dataclass(frozen=True)
class Mutant:
    """One edit of one file; `path` is as a manifest names it."""

    path: str
    line: int
    edit: str
    text: str


def texts_of(book: Book, chapter: Chapter) -> dict[str, str]:
    """The text of every file that can be mutated, by its path in a manifest."""
    n = chapter.number
    texts = {path: book.text(path, n) for path in book.tree(n)}
    for file in sorted(chapter.dir.glob("*.py")):
        texts[f"{STAGE}{file.name}"] = file.read_text(encoding="utf-8")
    return texts


def planned(file: Path, texts: dict[str, str]) -> list[Mutant]:
    """The mutants of a mutants.toml; `texts` maps paths to the chapter's version.

    Raises:
        MutantError: a key is missing, the file is not the chapter's, or `find`
            does not occur exactly once in it.
    """
    if not file.is_file():
        return []
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get(
            "mutant", []
        )
    except tomllib.TOMLDecodeError as error:
        raise MutantError(f"{file.name}: {error}") from None
    return [
        _planned(f"{file.name} #{i}", e, texts)
        for i, e in enumerate(entries, 1)
    ]


def _planned(
    where: str, entry: dict[str, str], texts: dict[str, str]
) -> Mutant:
    if missing := [key for key in _KEYS if key not in entry]:
        raise MutantError(f"{where}: key {missing[0]!r} is missing")
    path, find = entry["path"].removeprefix("minisgl/"), entry["find"]
    if path not in texts:
        raise MutantError(f"{where}: the chapter has no file {path}")
    text = texts[path]
    if (count := text.count(find)) != 1:
        raise MutantError(
            f"{where}: `find` occurs {count} times in {path}, not once"
        )
    line = text[: text.index(find)].count("\n") + 1
    return Mutant(
        path, line, entry["why"], text.replace(find, entry["replace"])
    )


def drawn(
    texts: dict[str, str], before: dict[str, str], count: int, seed: str
) -> list[Mutant]:
    """At most `count` operator mutations of the lines that the chapter wrote.

    Args:
        texts: text by path of the files that the chapter adds or changes.
        before: text by path in the chapter before, for the changed ones.
        seed: the same seed and texts give the same mutants.
    """
    found = [
        mutant
        for path in sorted(texts)
        for mutant in _sites(path, texts[path], before.get(path, ""))
    ]
    random.Random(seed).shuffle(found)
    return sorted(found[:count], key=lambda m: (m.path, m.line))


def _sites(path: str, text: str, old: str) -> Iterator[Mutant]:
    raw, tree = text.encode(), ast.parse(text)
    starts = [0]
    for line in raw.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    changed, same = _new_lines(old, text), ast.dump(tree)
    for node in _walk(tree):
        for start, end, new in _edits(node, raw, starts):
            number = raw[:start].count(b"\n") + 1
            wrong = (raw[:start] + new.encode() + raw[end:]).decode()
            if number not in changed or not _differs(wrong, same):
                continue
            was = raw[start:end].decode().strip() or "nothing"
            source = text.split("\n")[number - 1].strip()
            edit = f"{was} -> {new.strip() or 'nothing'} in `{source}`"
            yield Mutant(path, number, edit, wrong)


def _differs(wrong: str, same: str) -> bool:
    try:
        return ast.dump(ast.parse(wrong)) != same
    except SyntaxError:
        return False


def _new_lines(old: str, new: str) -> set[int]:
    matcher = SequenceMatcher(
        None, old.splitlines(), new.splitlines(), autojunk=False
    )
    return {
        line + 1
        for tag, _, _, first, last in matcher.get_opcodes()
        if tag != "equal"
        for line in range(first, last)
    }


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that decide what the code computes: no annotations, no messages."""
    for name, value in ast.iter_fields(node):
        if name in {
            "annotation",
            "returns",
            "decorator_list",
            "type_comment",
            "msg",
        }:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_words(child):
                continue
            yield child
            yield from _walk(child)


def _is_words(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.FunctionDef):
        return node.name in {"__repr__", "__str__"}
    return isinstance(
        node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom
    )


def _edits(
    node: ast.AST, raw: bytes, starts: list[int]
) -> Iterator[tuple[int, int, str]]:
    """(start, end, replacement) in bytes of the edits of one node."""

    def begin(n: ast.expr) -> int:
        return starts[n.lineno - 1] + n.col_offset

    def end(n: ast.expr) -> int:
        return starts[(n.end_lineno or n.lineno) - 1] + (n.end_col_offset or 0)

    def between(
        left: ast.expr, right: ast.expr, pair: tuple[str, str]
    ) -> _Edits:
        word = rf"(?<!\w){re.escape(pair[0])}(?!\w)".replace(r"\ ", r"\s+")
        pattern = word if pair[0][0].isalpha() else re.escape(pair[0])
        low, high = end(left), begin(right)
        if match := re.search(pattern.encode(), raw[low:high]):
            yield low + match.start(), low + match.end(), pair[1]

    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        for left, right, op in zip(sides, sides[1:], node.ops, strict=False):
            yield from between(left, right, _COMPARE[type(op)])
    elif isinstance(node, ast.BoolOp):
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from between(left, right, _BOOLEAN[type(node.op)])
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        if not any(_is_text(side) for side in (node.left, node.right)):
            yield from between(
                node.left, node.right, _ARITHMETIC[type(node.op)]
            )
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield begin(node), begin(node) + 3, ""
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield begin(node), end(node), str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield begin(node), end(node), str(node.value + 1)


_Edits = Iterator[tuple[int, int, str]]


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, ast.JoinedStr)
