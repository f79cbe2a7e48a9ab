"""Lint on files, manifests, frozen copies and budgets: planted faults are seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.linting import FROZEN, ONE, TWO, expect, found
from tests.tools.planted import CACHE, append, edit, write, write_book


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_book(tmp_path / "book")


def test_a_clean_book_is_green(root):
    assert found(root) == []


def test_file_no_manifest_names(root):
    write(root, "minisgl/stray.py", "")
    expect(root, r"^minisgl/stray.py:1: ch02: no manifest names this file$")


def test_chapter_test_no_manifest_names(root):
    write(root, "tests/test_ch02_more.py", "")
    expect(
        root, r"^tests/test_ch02_more.py:1: ch02: no manifest names this test"
    )


def test_named_file_that_does_not_exist(root):
    edit(
        root,
        TWO,
        'add      = ["radix.py"]',
        'add      = ["radix.py", "gone.py"]',
    )
    lines = found(root)
    assert f"{TWO}:6: ch02: minisgl/gone.py does not exist" in lines


def test_frozen_copy_missing(root):
    (root / FROZEN).unlink()
    expect(
        root,
        rf"^{ONE}:5: ch01: frozen copy {FROZEN} is missing$",
        r"stub core.py::Req.answer: core.py: no such file",
        r"symbols core.py::Req: core.py: no such file",
    )


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("files/minisgl/cache.py", "no later chapter changes this file"),
        ("files/minisgl/radix.py", "ch01 does not own this file"),
        ("files/core.py", "frozen copies lie under files/minisgl/"),
    ],
)
def test_frozen_copy_superfluous(root, path, message):
    write(root, f"stages/ch01-core/{path}", CACHE)
    expect(root, rf"^stages/ch01-core/{path}:1: ch01: .*{message}")


def test_frozen_copy_equal_to_its_successor(root):
    edit(
        root,
        TWO,
        'change   = ["core.py"]',
        'change   = ["core.py", "cache.py"]',
    )
    write(root, "stages/ch01-core/files/minisgl/cache.py", CACHE)
    expect(root, r"files/minisgl/cache.py:1: ch01: the same text as .* ch02$")


def test_add_of_an_existing_path(root):
    edit(root, TWO, 'change   = ["core.py"]', "")
    edit(root, TWO, '["radix.py"]', '["radix.py", "core.py"]')
    expect(root, rf"^{TWO}:6: ch02: adds core.py, which ch01 added already$")


def test_change_of_an_absent_path(root):
    edit(root, TWO, 'add      = ["radix.py"]', "add = []")
    edit(
        root,
        TWO,
        'change   = ["core.py"]',
        'change   = ["core.py", "radix.py"]',
    )
    expect(root, rf"^{TWO}:7: ch02: changes radix.py, which is not there$")


def test_path_named_twice(root):
    edit(root, TWO, '["radix.py"]', '["radix.py", "radix.py"]')
    assert f"{TWO}:6: ch02: radix.py is named twice" in found(root)


def test_early_file_that_is_explained_before(root):
    edit(root, TWO, '["radix.py"]', '[]\nearly = { "radix.py" = "ch01" }')
    expect(root, rf"^{TWO}:7: ch02: early radix.py: name a later chapter")


def test_too_many_versions(root):
    for n in range(3, 9):
        stage = f"stages/ch{n:02d}-more"
        text = (root / TWO).read_text().split("swaps")[0]
        text += f'[files]\nchange = ["core.py"]\n[check]\ntests = ["tests/t{n}.py"]\n'
        write(root, f"{stage}/stage.toml", text)
    for n in range(2, 8):
        name = "radix" if n == 2 else "more"
        write(
            root, f"stages/ch{n:02d}-{name}/files/minisgl/core.py", f"# {n}\n"
        )
    lines = found(root)
    assert any(
        "ch08: 8 versions of core.py, at most 6" in line for line in lines
    )


def test_too_many_superseded_lines(root):
    append(root, FROZEN, "# kept\n" * 94)  # 23 + 94 = 117 > 2 * 58
    expect(
        root,
        r"^stages:1: ch02: 117 superseded lines, at most 2x of the 58 final",
    )
    edit(root, FROZEN, "# kept\n", "")
    assert found(root) == []


def test_a_mutant_whose_line_is_gone(root):
    mutants = "stages/ch02-radix/mutants.toml"
    edit(root, mutants, 'find = "self.kept[key]', 'find = "self.lost[key]')
    expect(
        root, rf"^{mutants}:1: ch02: .*occurs 0 times in radix.py, not once$"
    )
