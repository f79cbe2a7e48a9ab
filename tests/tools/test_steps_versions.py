"""Churn, freeze and backport on a planted book."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.tools.linting import FROZEN, TWO
from tests.tools.planted import CACHE, CORE01, edit, git_init, write, write_book
from tools.steplib import show, versions
from tools.steplib.book import Book, ManifestError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_book(tmp_path / "book")


def test_churn_counts_versions_and_superseded_lines(root):
    rows = show.churn(Book.load(root))
    assert (rows[0].path, rows[0].versions, rows[0].superseded) == (
        "core.py",
        2,
        23,
    )
    assert "superseded lines: 23 = 0.40x of 58" in show.churn_total(rows)


def test_list_reads_the_last_check(root):
    status = {
        "ch01": {"ok": True, "hash": "x", "when": "today"},
        "ch02": {"ok": False},
    }
    write(root, ".cache/check/status.json", json.dumps(status))
    git_init(root)
    rows = show.overview(Book.load(root))
    assert [r.last_check for r in rows] == ["", "ok today", "failed"]
    assert [(r.files, r.lines, r.added, r.removed) for r in rows] == [
        (1, 126, 126, 0),
        (3, 38, 38, 0),
        (4, 58, 23, 3),
    ]


def test_freeze_keeps_the_text_and_edits_the_manifest(root):
    before = (root / TWO).read_text()
    versions.freeze(Book.load(root), "cache.py", 2)
    assert (
        root / "stages/ch01-core/files/minisgl/cache.py"
    ).read_text() == CACHE
    after = before.replace('["core.py"]', '["core.py", "cache.py"]', 1)
    assert (root / TWO).read_text() == after
    with pytest.raises(ManifestError, match="ch02 holds its own version"):
        versions.freeze(Book.load(root), "cache.py", 2)
    with pytest.raises(
        ManifestError, match="not there before ch01: ch02 adds it"
    ):
        versions.freeze(Book.load(root), "radix.py", 1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("part = 1\n", '[files]\nchange   = ["x.py"]'),
        (
            '[files]\nadd = [\n  "a.py",\n]\n[check]\n',
            ']\nchange   = ["x.py"]\n[check]',
        ),
        ("[files]\nchange = []\n", 'change = ["x.py"]'),
        ('[files]\nchange = [\n  "a.py"\n]\n', '  "a.py",\n    "x.py",\n]'),
        (
            '[files] # all\nchange = ["a.py", ]  # why\n',
            '["a.py", "x.py"]  # why',
        ),
    ],
)
def test_add_change_is_minimal(text, line):
    edited = versions.add_change(text, "x.py")
    assert line in edited
    assert tomllib.loads(edited)["files"]["change"][-1] == "x.py"


def test_backport_merges_a_fix_into_the_older_version(root):
    git_init(root)
    with pytest.raises(
        ManifestError, match=r"no newer version of core.py differs"
    ):
        versions.backport(Book.load(root), 1, "core.py")
    edit(
        root,
        "minisgl/core.py",
        "return sum(self.numbers)",
        "return sum(self.numbers, 0)",
    )
    merge = versions.backport(Book.load(root), 1, "core.py")
    assert (merge.conflicts, merge.target) == (0, root / FROZEN)
    wanted = CORE01.replace("sum(self.numbers)", "sum(self.numbers, 0)")
    assert merge.text == wanted
    with pytest.raises(ManifestError, match="no older version"):
        versions.backport(Book.load(root), 2, "core.py")


def test_backport_reports_conflicts(root):
    git_init(root)
    edit(
        root,
        "minisgl/core.py",
        "    return RadixCache()",
        "    return RadixCache(1)",
    )
    merge = versions.backport(Book.load(root), 1, "core.py")
    assert merge.conflicts == len(merge.hunks) == 1
    assert "return NaiveCache()" in merge.hunks[0]
