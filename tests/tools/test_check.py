"""`tools/check.py`: dealing out tests, counting them, links, rows, the last line."""

import subprocess
import sys
from collections import Counter

import pytest
import typer

from tools import check
from tools.steplib import links, rows, testrun
from tools.steplib.book import ROOT
from tools.steplib.pages import TAG_NOTE
from tools.steplib.rows import Row


def plant(root, **files):
    (root / "tests").mkdir()
    for name, text in files.items():
        (root / "tests" / f"test_{name}.py").write_text(text)


def run(root, full=False):
    root.joinpath("pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib -q\nmarkers =\n  slow: x\n"
    )
    with (root / "log").open("w") as log:
        return testrun.run(root, log, root / "cache", full)


def test_counts_are_summed_over_processes(tmp_path):
    plant(
        tmp_path,
        a="import pytest\ndef test_1(): ...\n@pytest.mark.skip\ndef test_2(): ...",
        b="def test_3(): assert 0\ndef test_4(): ...",
        c="import pytest\n@pytest.mark.slow\ndef test_5(): ...",
    )
    outcome = run(tmp_path)
    assert outcome.counts == Counter(passed=2, failed=1, skipped=1)
    assert not outcome.green
    assert outcome.line(1.25) == "1 failed, 2 passed, 1 skipped in 1.2s"
    assert "assert 0" in (tmp_path / "log").read_text()
    assert run(tmp_path, full=True).counts["passed"] == 3


@pytest.mark.parametrize(
    "text",
    ["import nowhere", "import os\ndef test_1(): os._exit(3)", "def test_(:"],
)
def test_a_process_that_breaks_is_red(tmp_path, text):
    plant(tmp_path, good="def test_0(): ...", bad=text)
    outcome = run(tmp_path)
    assert outcome.counts["errors"] >= 1
    assert not outcome.green


def test_no_test_at_all_is_red(tmp_path):
    (tmp_path / "tests").mkdir()
    assert not run(tmp_path).green


def test_files_are_dealt_by_last_times():
    weights = {"a": 5.0, "b": 3.0, "c": 2.0, "d": 1.0}
    assert testrun.deal(weights, 2) == [["a", "d"], ["b", "c"]]
    assert testrun.deal({"a": 1.0}, 2) == [["a"]]


def test_links_are_checked_outside_code(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "here.md").touch()
    page.write_text(
        "[a](here.md#x) [b](https://nowhere.example) [c](#top) `[d](code.md)`\n"
        "```\n[e](fenced.md)\n```\n![f](gone.svg)\n"
    )
    assert links.broken(tmp_path, [page]) == ["page.md:5: nothing at gone.svg"]


def test_a_failing_command_fails_its_row(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "LOGS", tmp_path)
    python = sys.executable
    row = Row(
        "x", ((python, "-c", "print('one'); exit(3)"), (python, "-c", "1/0"))
    )
    result = check.run_row(row)
    assert result.state == "FAILED"
    text = result.log.read_text()
    assert "one" in text and "status 3" in text and "1/0" not in text
    good = check.run_row(Row("y", ((python, "-c", "print('fine')"),)))
    assert (good.state, good.note) == ("ok", "fine")
    assert check.run_row(Row("z", skip="no compiler")).state == "skip"


def test_rows_are_chosen_by_name():
    every = rows.rows(ROOT)
    assert every[-1].name == "pytest"
    names = [
        row.name for row in check.choose(every, ["ruff", "docs"], fast=False)
    ]
    assert names == ["ruff", "docs"]
    assert "stages" not in [
        row.name for row in check.choose(every, [], fast=True)
    ]
    with pytest.raises(typer.BadParameter, match="no row 'rough'; known: ruff"):
        check.choose(every, ["rough"], fast=False)


def test_a_tag_tree_skips_what_it_cannot_hold(tmp_path):
    (tmp_path / "stages").mkdir()
    (tmp_path / TAG_NOTE).touch()
    assert skipped_rows(tmp_path) == [
        "links",
        "docs",
        "book",
        "tags",
        "exercises",
    ]
    (tmp_path / TAG_NOTE).unlink()
    assert skipped_rows(tmp_path) == ["tags"]  # no git


def skipped_rows(root):
    every = [row for row in rows.rows(root) if row.skip]
    others = {"nvcc", *rows.TESTS}
    assert others - {"nvcc"} <= {row.name for row in every}  # no tests here
    return [row.name for row in every if row.name not in others]


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "nvcc is not installed"),
        ("release 11.5, V11.5.1", "nvcc 11.5 is too old: sm_90 needs 11.8"),
        ("release 11.8, V11.8.89", ""),
        ("release 13.0, V13.0.88", ""),
        ("no such text", "nvcc does not tell its version"),
    ],
)
def test_an_nvcc_that_cannot_is_a_skip(monkeypatch, tmp_path, version, reason):
    monkeypatch.setenv("PATH", str(tmp_path))
    if version is not None:
        program = tmp_path / "nvcc"
        program.write_text(f"#!/bin/sh\necho '{version}'\n")
        program.chmod(0o755)
    (row,) = check.choose(rows.rows(ROOT), ["nvcc"], fast=False)
    assert row.skip == reason and row.commands[0][-1] == "tools/nvcc.py"


def test_rows_of_tests_share_them_out():
    every = check.choose(rows.rows(ROOT), [], fast=False)
    files = [file for row in every for file in row.tests]
    assert len(files) == len(set(files))
    assert set(files) == set(testrun.weigh(ROOT, ROOT / "nowhere"))
    (alone,) = check.choose(rows.rows(ROOT), ["pytest"], fast=False)
    assert set(alone.tests) == set(files)


def test_rows_of_tests_are_run_together(tmp_path, monkeypatch):
    plant(
        tmp_path,
        a="import pytest\n@pytest.mark.skip\ndef test_1(): ...",
        b="def test_2(): ...",
        c="def test_3(): ...\ndef test_4(): assert 0",
    )
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "LOGS", tmp_path)
    planted = [Row(n, tests=(f"tests/test_{n}.py",)) for n in "abc"]
    later = Row("later", skip="in a later chapter")
    results, line = check.run_tests([*planted, later], full=False)
    states = [one.state for one in results]
    # All of its tests were skipped, so nothing was proven.
    assert states == ["skip", "ok", "FAILED", "skip"]
    assert results[1].note.startswith("1 passed in")
    assert line.startswith("1 failed, 2 passed, 1 skipped in")
    assert "assert 0" in results[2].log.read_text()
    assert check.run_tests([later], full=False)[1] == ""


def test_a_process_that_breaks_fails_the_last_row(tmp_path, monkeypatch):
    plant(tmp_path, a="def test_1(): ...",
          b="import os\ndef test_2(): os._exit(3)")  # fmt: skip
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "LOGS", tmp_path)
    planted = [Row(n, tests=(f"tests/test_{n}.py",)) for n in "ba"]
    results, line = check.run_tests(planted, full=False)
    assert [one.state for one in results] == ["FAILED", "FAILED"]
    assert "1 errors" in line


def test_command_prints_one_line_a_row_and_tells_its_status():
    command = [sys.executable, "tools/check.py", "--only", "links"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    name, state, *_ = done.stdout.split()
    assert name == "links"
    assert state == ("FAILED" if done.returncode else "ok"), done.stdout
    wrong = subprocess.run(
        [*command, "--only", "rough"], cwd=ROOT, capture_output=True
    )
    assert wrong.returncode == 2
    assert b"no row 'rough'" in wrong.stderr
