"""Lint on imports: planted faults are seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.linting import FROZEN, TWO, expect, found
from tests.tools.planted import append, edit, write, write_book


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_book(tmp_path / "book")


LATER = [
    "from minisgl.radix import RadixTree",
    "from minisgl import radix",
    "import minisgl.radix",
    "from .radix import RadixTree",
    "from . import radix",
    'importlib.import_module("minisgl.radix")',
]


@pytest.mark.parametrize("statement", LATER)
@pytest.mark.parametrize(
    "block", ["{}", "def f():\n    {}", "if TYPE_CHECKING:\n    {}"]
)
def test_import_of_a_later_module(root, statement, block):
    append(root, "minisgl/cache.py", f"\n{block.format(statement)}\n")
    append(root, "minisgl/radix.py", "\nRadixTree = dict\n")
    line = 16 + block.count("\n")
    expect(
        root,
        rf"^minisgl/cache.py:{line}: ch01: .*radix.* at ch01 \(comes in ch02\)",
    )


def test_import_of_a_name_that_a_later_version_has(root):
    append(root, "minisgl/core.py", "\n\ndef helper() -> None: ...\n")
    append(root, "minisgl/cache.py", "\nfrom minisgl.core import helper\n")
    expect(root, r"ch01: minisgl.core has no helper at ch01 \(comes in ch02\)$")


def test_import_of_a_name_that_a_later_version_dropped(root):
    append(root, FROZEN, "\n\nOLD = 1\n")
    append(root, "minisgl/cache.py", "\nfrom minisgl.core import OLD\n")
    expect(
        root,
        r"cache.py:16: ch02: minisgl.core has no OLD at ch02 \(comes in ch01\)$",
    )


def test_import_that_leads_out_of_the_package(root):
    append(root, "minisgl/cache.py", "\nfrom ..other import x\n")
    expect(
        root, r"cache.py:16: ch01: import leads out of the package: ..other$"
    )


@pytest.mark.parametrize(
    "target", ["tests/test_ch01_core.py", "stages/ch01-core/main.py"]
)
def test_import_of_a_test_or_main(root, target):
    append(root, target, "\n\ndef late():\n    import minisgl.radix\n")
    expect(
        root,
        rf"^{target}:\d+: ch01: minisgl.radix is not in the package at ch01",
    )


def test_names_reach_through_star_imports_and_blocks(root):
    append(root, "minisgl/__init__.py", "from .core import *\n")
    append(
        root,
        FROZEN,
        "\ntry:\n    A, (B, *C) = 1, (2, 3)\nexcept ValueError as e:\n    D = 1\n",
    )
    append(root, "minisgl/core.py", "\nA = B = C = D = 0\n")
    append(
        root,
        "stages/ch01-core/main.py",
        "\nfrom minisgl import A, B, C, D, Req\n",
    )
    assert found(root) == []
    append(root, "stages/ch01-core/main.py", "\nfrom minisgl import E\n")
    expect(root, "minisgl has no E at ch01$")


def test_syntax_error(root):
    append(root, "minisgl/radix.py", "def (:\n")
    assert any(
        "radix.py:21: ch02: does not parse" in line for line in found(root)
    )


@pytest.mark.parametrize(
    "place", ["minisgl/cache.py", "stages/ch01-core/main.py"]
)
def test_third_party_import_before_its_deps(root, place):
    append(
        root, place, "\n\ndef f():\n    import yaml.nodes\n    import json\n"
    )
    edit(root, TWO, "deps     = []", 'deps     = ["PyYAML>=6"]')
    expect(
        root,
        rf"^{place}:\d+: ch01: imports yaml, which no deps up to ch01 allow$",
    )
    edit(
        root,
        "stages/ch00-step0/stage.toml",
        "deps     = []",
        'deps = ["PyYAML>=6"]',
    )
    assert found(root) == []


def test_added_file_that_nothing_reaches(root):
    write(root, "minisgl/lonely.py", "X = 1\n")
    edit(root, TWO, '["radix.py"]', '["radix.py", "lonely.py"]')
    message = "neither main.py nor a test of ch02 reaches lonely.py"
    expect(root, rf"^{TWO}:6: ch02: {message}$")
    append(
        root,
        "minisgl/radix.py",
        "\n\ndef f() -> None:\n    from . import lonely\n",
    )
    assert found(root) == []


def test_files_are_reached_through_helpers_strings_and_names(root):
    added = '["radix.py", "lonely.py", "run.py", "csrc/x.cu"]'
    edit(root, TWO, '["radix.py"]', added)
    write(root, "minisgl/lonely.py", 'SOURCE = "csrc/x.cu"\n')
    write(root, "minisgl/run.py", "")
    write(root, "minisgl/csrc/x.cu", "")
    assert len(found(root)) == 3
    append(root, "tests/parity.py", "\n\ndef f():\n    import minisgl.lonely\n")
    append(root, "tests/test_ch02_radix.py", '\nMODULE = "minisgl.run"\n')
    assert found(root) == []
