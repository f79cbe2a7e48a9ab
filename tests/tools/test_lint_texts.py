"""Lint on words, symbols, pages, outputs and step 0: planted faults are seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.linting import ENGINE, FROZEN, ONE, TWO, expect, found
from tests.tools.planted import append, edit, write, write_book
from tools.steplib import lint_texts
from tools.steplib.facts import read_facts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_book(tmp_path / "book")


@pytest.mark.parametrize(
    "place",
    [
        "minisgl/cache.py",
        FROZEN,
        "stages/ch01-core/main.py",
        "tests/test_ch01_core.py",
    ],
)
def test_introduced_word_in_earlier_code(root, place):
    append(root, place, "# like RadixCache\n")
    expect(root, rf"^{place}:\d+: ch01: RadixCache is introduced in ch02 only$")


def test_introduced_word_in_a_code_block_of_an_earlier_page(root):
    page = "docs/en/ch01-core.md"
    append(
        root, page, "A `RadixCache` in prose.\n```mermaid\nRadixCache\n```\n"
    )
    append(
        root, page, "    ```python\n    MyRadixCache, RadixCaches\n    ```\n"
    )
    assert found(root) == []
    append(
        root,
        page,
        "!!! note\n    ~~~~python\n    ```\n    RadixCache()\n    ~~~~\n",
    )
    expect(root, rf"^{page}:18: ch01: RadixCache is introduced in ch02 only$")


def test_code_lines():
    text = "a\n```py x\nb\n~~~\nc\n```\nd\n> ```\n> e\n> ```\n"
    assert [n for n, _ in lint_texts.code_lines(text)] == [3, 4, 5, 9]


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("radix.py::RadixCache.evict", "no such function or method"),
        ("radix.py::RadixCache", "no such function or method"),
        ("tree.py::f", "no such file"),
        ("radix.py", "a target reads"),
        (
            "cache.py::NaiveCache.match",
            "ch02 neither adds nor changes the file",
        ),
    ],
)
def test_stub_that_does_not_exist(root, new, message):
    edit(root, TWO, '["radix.py::RadixCache.match", ', f'["{new}", ')
    expect(root, rf"^{TWO}:13: ch02: stub {new}: .*{message}")


@pytest.mark.parametrize(
    ("path", "old", "new", "what"),
    [
        (ONE, '["core.py::Req"]', '["core.py::Reqs"]', "symbols"),
        (
            ONE,
            '["core.py::Req"]',
            '["radix.py::RadixCache"]',
            "symbols",
        ),
        (TWO, "radix.py::RadixCache.match", "radix.py::RadixCache.hit", "stub"),
        (
            TWO,
            'old = "cache.py::NaiveCache"',
            'old = "cache.py::No"',
            "swaps",
        ),
    ],
)
def test_symbol_that_does_not_exist(root, path, old, new, what):
    edit(root, path, old, new)
    expect(root, rf"^{path}:\d+: ch0\d: {what} \S+: .*")


@pytest.mark.parametrize(
    "path",
    [
        "stages/ch02-radix/main.py",
        "stages/ch02-radix/output.txt",
        "docs/en/ch02-radix.md",
        "tests/test_ch02_radix.py",
    ],
)
def test_missing_part(root, path):
    (root / path).unlink()
    assert any(f"ch02: {path} is missing" in line for line in found(root))


def test_chinese_pages_are_due_once_there_is_one(root):
    write(root, "docs/zh/ch01-core.md", "# 核心\n")
    names = ["ch00-step0", "ch02-radix"]
    expect(root, *(rf"docs/zh/{name}.md is missing$" for name in names))


def test_missing_parity_test(root):
    edit(
        root,
        "tests/test_ch02_radix.py",
        "@pytest.mark.parity\n",
        "# mark.parity\n",
    )
    expect(
        root, rf"^{TWO}:1: ch02: no test of \[check\].tests is marked parity$"
    )


def test_step0_has_126_lines_and_no_package(root):
    append(root, ENGINE, "# more\n")
    expect(
        root, rf"^{ENGINE}:127: ch00: step 0 has exactly 126 lines, not 127$"
    )
    edit(root, ENGINE, "# line 126\n# more\n", "# as MiniSGL has it\n")
    expect(root, rf"^{ENGINE}:126: ch00: step 0 never says minisgl$")


def test_facts_of_a_file():
    facts = read_facts(
        "import a.b as c, d.e\n"
        "from .x import y as z\n"
        "with f() as (g, h): pass\n"
        "def k():\n    global m\n    n = 1\n"
        "p: int\n"
        "for q in [r for r in s]: t = lambda: (u := 1)\n"
    )
    assert facts.names == {"c", "d", "z", "g", "h", "k", "m", "q", "t"}
    assert [i.module for i in facts.imports] == ["a.b", "d.e", "x"]


def test_symbol_may_be_a_re_export(root):
    append(root, "minisgl/core.py", "\nfrom .limits import Limits\n")
    write(root, "minisgl/limits.py", "class Limits:\n    low = 1\n")
    edit(root, TWO, '["radix.py"]', '["radix.py", "limits.py"]')
    old = '["radix.py::RadixCache.match"]'
    edit(root, TWO, old, '["core.py::Limits.low"]')
    assert found(root) == []
    edit(root, TWO, "Limits.low", "Limits.high")
    expect(root, r"symbols core.py::Limits.high: .*not defined there$")
