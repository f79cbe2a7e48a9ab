"""`steps.py check` on a planted book: what is green, what turns red, what is kept."""

import json
import subprocess
import sys

import pytest

from tests.tools.checking import (
    MAIN,
    TEST,
    add_test,
    check,
    make_book,
    messages,
    red,
    verdicts,
)
from tests.tools.planted import append, edit, write
from tools.steplib import masks

FROZEN = "stages/ch01-core/files/minisgl/core.py"
MUTANTS = "stages/ch02-radix/mutants.toml"


@pytest.fixture
def book(tmp_path):
    return make_book(tmp_path / "book")


def test_green_then_cached_then_only_what_changed(book):
    code, out, err = check(book)
    assert code == 0, out + err
    first, second, _, total = out.splitlines()
    assert first.startswith("ch00 step0  1 files 126 lines +126 -0  main 0.")
    assert second.endswith("tests 3  parity 1  ok")
    assert total.startswith("3 chapters: 3 ok; 6 tests, 3 of them parity; ")
    status = json.loads((book / ".cache/check/status.json").read_text())
    assert [status[c]["ok"] for c in ("ch00", "ch01", "ch02")] == [True] * 3

    assert check(book)[1].count("ok  cached") == 3
    assert "cached" not in check(book, "--fresh")[1]
    assert "3 chapters unchanged" in check(book, "--changed")[1]

    append(book, FROZEN, "\n# a comment\n")
    out = check(book, "--changed")[1]
    assert out.startswith("ch01 ") and "2 chapters unchanged" in out


def test_a_failure_names_place_owner_copy_and_command(book):
    edit(book, FROZEN, "return sum(self.numbers)", "return sum(self.nothing)")
    code, out, _ = check(book)
    assert code == 1
    lines = out.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("ch")] == [
        "ok",
        "FAIL",
        "ok",
    ]
    assert "minisgl/core.py:18: AttributeError" in out
    assert f"owner  ch01-core, text in {FROZEN}" in out
    assert "in     tests/test_ch01_core.py::test_answer" in out
    assert "again: python tools/steps.py check --only 1" in out
    # Said once more behind the chapters that came after it.
    end = out[out.index("failed above: ch01 core\n") :]
    assert "minisgl/core.py:18: AttributeError" in end and "ch02" not in end
    assert not json.loads((book / ".cache/check/status.json").read_text())[
        "ch01"
    ]["ok"]
    assert (
        "FAIL" in check(book)[1]
    )  # a red result is never taken from the cache


@pytest.mark.parametrize(
    ("path", "old", "new", "want"),
    [
        ("minisgl/core.py", "sum(self", "max(self", ["ch02"]),
        ("minisgl/radix.py", "= value", "= None", ["ch02"]),
        ("stages/ch00-step0/engine.py", "total = 0", "total = 1", ["ch00"]),
        (
            "minisgl/cache.py",
            "class NaiveCache",
            "class Nave",
            ["ch01", "ch02"],
        ),
    ],
)
def test_only_chapters_with_that_version_turn_red(book, path, old, new, want):
    edit(book, path, old, new)
    assert red(book) == want


def test_output_is_compared_and_blessed(book):
    output = "stages/ch01-core/output.txt"
    edit(book, output, "answer: 6", "answer: 7")
    row = verdicts(book, "--only", "1")["ch01"]
    assert (
        f"{output}:1: expected 'answer: 7', main.py printed 'answer: 6'"
        in messages(row)
    )
    assert check(book, "--only", "1", "--bless")[0] == 0
    assert (book / output).read_text() == "answer: 6\ncached: None\n"
    assert check(book, "--only", "1")[0] == 0


def test_only_digits_after_a_tilde_are_masked():
    same = masks.first_difference
    assert same("load ~12.3 ms\n", "load ~1,234.5 ms\n") is None
    assert same("| ~ 9.8 ms |", "| ~10.25 ms |") is None
    assert same("ids 12 ~3 ms", "ids 13 ~3 ms") == (
        1,
        "'ids 12 ~3 ms'",
        "'ids 13 ~3 ms'",
    )
    assert same("~3 ms", "~3 s") is not None
    assert same("a\nb", "a") == (2, "'b'", "the end")


def test_skips_are_shown_and_never_ok(book):
    add_test(book, 'import pytest\npytest.skip("needs a GPU")')
    code, out, _ = check(book, "--only", "1")
    assert code == 0
    assert "parity 1  skips 1  skipped\n" in out
    assert "test_planted: needs a GPU" in out
    assert "1 chapters: 0 ok, 1 with skips (1)" in out


def test_slow_tests_are_for_full_runs(book):
    slow = "\n\nimport pytest\n\n\n@pytest.mark.slow\ndef test_long():\n"
    append(book, TEST, f"{slow}    raise AssertionError('it ran')\n")
    assert red(book) == []
    row = verdicts(book, "--only", "1", "--full")["ch01"]
    assert "it ran" in messages(row)


def test_a_chapter_without_parity_or_with_a_dead_child_is_red(book):
    edit(book, TEST, "@pytest.mark.parity\n", "")
    edit(
        book,
        "stages/ch00-step0/main.py",
        "if __name__",
        "import os; os._exit(0)\nif __name__",
    )
    rows = verdicts(book, "--upto", "1")
    assert "no test marked parity ran" in messages(rows["ch01"])
    assert "stages/ch00-step0/main.py: died" in messages(rows["ch00"])


def test_a_main_that_fails_or_exits_is_red(book):
    append(book, MAIN, "    raise SystemExit(3)\n")
    assert "exit code 3" in messages(verdicts(book, "--only", "1")["ch01"])
    edit(book, MAIN, "raise SystemExit(3)", "print(1 / 0)")
    row = verdicts(book, "--only", "1")["ch01"]
    assert f"{MAIN}:13: ZeroDivisionError" in messages(row)


def test_lint_counts_even_when_the_rest_is_kept(book):
    assert red(book) == []
    append(book, "docs/en/ch01-core.md", "\n```python\nRadixCache()\n```\n")
    row = verdicts(book)["ch01"]
    assert row["cached"] and not row["ok"] and "RadixCache" in messages(row)


def test_full_counts_starters_and_mutants(book):
    code, out, _ = check(book, "--full")
    assert code == 0
    assert "starter red 1/1  mutants 1/1  ok" in out
    assert "starter red 2/2  mutants 1/1  ok" in out
    assert "random 1/1  ok" in out  # ch00: its engine is mutated
    assert check(book)[1].count("ok  cached") == 3  # covers the plain check


def test_full_finds_starters_that_prove_nothing(book):
    edit(
        book,
        "tests/test_ch02_radix.py",
        "    cache.insert((1, 2), Req([1, 2]).answer())\n"
        "    assert cache.match((1, 2)) == reference([1, 2])\n",
        "    assert reference([1])\n",
    )
    edit(
        book,
        "stages/ch02-radix/main.py",
        "    cache.insert((1, 2, 3), 6)\n",
        "",
    )
    edit(book, "stages/ch02-radix/output.txt", "cached: 6", "cached: None")
    row = verdicts(book, "--only", "2", "--full")["ch02"]
    assert row["starters"] == [1, 2]
    assert (
        "starter of radix.py::RadixCache.insert: main and tests stay green"
        in messages(row)
    )


def test_full_finds_starters_red_for_another_reason(book):
    edit(
        book,
        "tests/test_ch02_radix.py",
        "    cache = RadixCache()\n",
        "    cache = RadixCache()\n    try:\n        cache.match((1,))\n"
        "    except NotImplementedError:\n        caught = True\n    else:\n"
        "        caught = False\n    assert caught is False\n",
    )
    row = verdicts(book, "--only", "2", "--full")["ch02"]
    assert (
        "red for another reason than NotImplementedError: AssertionError"
        in messages(row)
    )
    assert row["starters"] == [1, 2]


def test_full_finds_surviving_and_wrong_mutants(book):
    edit(
        book,
        MUTANTS,
        "self.kept[key] = value + 1",
        "self.kept[key] = int(value)",
    )
    row = verdicts(book, "--only", "2", "--full")["ch02"]
    assert row["mutants"] == [0, 1]
    assert (
        "minisgl/radix.py:20: mutant survives the chapter's tests: keeps"
        in messages(row)
    )
    edit(book, MUTANTS, 'find = "self.kept[key] = value"', 'find = "self"')
    row = verdicts(book, "--only", "2", "--full")["ch02"]
    assert "`find` occurs 6 times in radix.py, not once" in messages(row)


def test_full_lists_random_survivors_and_fails_below_four_fifths(book):
    write(
        book,
        "minisgl/radix.py",
        (book / "minisgl/radix.py").read_text()
        + "\n\ndef unused(a: int) -> bool:\n    return a > 3 and not a == 5\n",
    )
    row = verdicts(book, "--only", "2", "--full")["ch02"]
    assert row["random"] == [0, 6]
    assert (
        "minisgl/radix.py:24: > -> >= in `return a > 3 and not a == 5`"
        in row["survivors"]
    )
    assert "random mutations: 0 of 6 killed, want 80%" in messages(row)


def test_a_missing_copy_is_that_chapters_trouble(book):
    (book / FROZEN).unlink()
    rows = verdicts(book, "--full")
    assert f"{FROZEN}: missing" in messages(rows["ch02"])  # what it mutates
    rows = verdicts(book, "--fresh")
    assert [c for c, row in rows.items() if not row["ok"]] == ["ch01"]
    assert f"{FROZEN}: missing" in messages(rows["ch01"])


def test_a_model_is_passed_on_and_output_not_compared(book):
    append(book, MAIN, "    print(sys.argv[1:])\n")
    add_test(
        book, "import os\nassert os.environ['MINISGL_TEST_MODEL'] == 'other'"
    )
    row = verdicts(book, "--only", "1", "--model", "other")["ch01"]
    assert row["ok"] and row["model"] == "other"
    assert not (book / ".cache/check/status.json").exists()
    row = verdicts(book, "--only", "1")["ch01"]
    assert "main.py printed \"['" not in messages(row)
    assert "main.py printed '[]'" in messages(row) and "KeyError" in messages(
        row
    )


def test_run_runs_the_version_of_the_chapter(book):
    append(
        book, MAIN, "    print(sys.argv[1:], make_cache().__class__.__name__)\n"
    )
    words = [sys.executable, "tools/steps.py", "run", "1", "--prompt", "x"]
    done = subprocess.run(words, cwd=book, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("['--prompt', 'x'] NaiveCache\n")
    append(book, MAIN, "    raise SystemExit(4)\n")
    assert subprocess.run(words, cwd=book, capture_output=True).returncode == 4
