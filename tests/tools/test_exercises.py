"""Exercises: their rules, their proofs, and the reader's loop from start to green."""

import os
import re
import subprocess
import sys

import pytest

from tests.tools.linting import expect, found
from tests.tools.planted import (
    LIMIT,
    LIMITED,
    add_exercise,
    append,
    copy_tools,
    edit,
    git,
    git_init,
    write,
    write_book,
)
from tools.steplib import cmd_tag, exercises
from tools.steplib.book import Book, ManifestError
from tools.steplib.cmd_docs import update
from tools.steplib.reader import language

TOML, TEST = f"{LIMIT}/exercise.toml", f"{LIMIT}/test_exercise.py"
SOLUTION = f"{LIMIT}/solution/minisgl/limited.py"
STUB = '        raise NotImplementedError("write LimitedCache.insert")\n'


@pytest.fixture
def root(tmp_path):
    return add_exercise(write_book(tmp_path / "book"))


@pytest.fixture
def clone(root):
    """The book with its tools in git, tags made: what a reader has."""
    copy_tools(root)
    append(root, ".gitignore", "practice/\n")
    git_init(root)
    cmd_tag.run(root, check=False)
    return root


def run(folder, *args, lang="C.UTF-8"):
    """Exit code and all output of steps.py of the checkout `folder`."""
    kept = {k: v for k, v in os.environ.items() if k[:8] != "MINISGL_"}
    kept = {k: v for k, v in kept.items() if k[:3] != "LC_"}
    done = subprocess.run(
        [sys.executable, str(folder / "tools/steps.py"), *args],
        cwd=folder, env=kept | {"LANG": lang}, text=True, timeout=60,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def fails(folder, *args):
    """The one line with which a command refuses."""
    code, out = run(folder, *args)
    assert code == 2, out
    assert out.count("\n") == 1, out
    return out


def load(root):
    return exercises.load(Book.load(root))


def test_a_starter_is_the_solution_with_its_functions_emptied(root):
    (one,) = load(root)
    starter = one.starter()["minisgl/limited.py"]
    assert starter.endswith(STUB)
    assert (
        starter[: -len(STUB)]
        == LIMITED[: LIMITED.index("        super().insert")]
    )
    assert one.hints("en") == ["One\n\nA.", "Two\n\nB."]
    assert one.stars == "★☆☆"


@pytest.mark.parametrize("which", ["ex02-1", "2-1", "02-1", "limit"])
def test_an_exercise_has_several_names(root, which):
    assert exercises.find(load(root), which).id == "ex02-1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("minutes    = 15\n", "", "key 'minutes' is missing"),
        (
            "minutes    = 15\n",
            "minutes = 15\nlevel = 1\n",
            "key 'level' is unknown",
        ),
        ("chapter    = 2", "chapter    = 1", "chapter must be 2"),
        ('"ex02-1"', '"ex2-1"', 'id must read "ex02-1"'),
        ('"ex02-1"', '"ex01-1"', 'id must read "ex02-1"'),
        ("difficulty = 1", "difficulty = 4", "difficulty must be 1, 2 or 3"),
        (
            "minutes    = 15",
            "minutes    = 300",
            "minutes must be from 10 to 90",
        ),
        (', zh = "上限"', "", "title must have en and zh"),
        ('["limited.py::LimitedCache.insert"]', "[]", "stubs must name"),
        ("id  ", "id = =", "exercise.toml"),
    ],
)
def test_a_wrong_manifest_is_one_line(root, old, new, message):
    edit(root, TOML, old, new)
    with pytest.raises(ManifestError, match=message):
        load(root)
    (line,) = found(root)
    assert line.startswith(f"{TOML}:1: ch02: ")


def test_lint_is_content_with_a_whole_exercise(root):
    write(root, "docs/zh/exercises.md", "# x\n")
    expect(root)


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        ("statement.zh.md", None, None, r"statement\.zh\.md is missing"),
        ("hints.en.md", None, None, r"hints\.en\.md is missing"),
        ("test_exercise.py", None, None, r"test_exercise\.py is missing"),
        ("statement.en.md", "# A limit", "# Limits", r"must begin with '# A limit'"),
        ("statement.zh.md", "写出 `insert`。", "写出它。", r"does not say .*\.insert"),
        ("statement.en.md", "Write", "写出", r"not in the language .*\(en\)"),
        ("hints.zh.md", "## 一\n\n甲。\n\n", "", r"1 hints, hints\.en\.md has 2"),
        ("hints.en.md", "A.", "```text\nx\n```", "its code is not that of hints.en"),
        ("exercise.toml", "Cache.insert", "Cache.nope", "stub .*nope: no such func"),
        ("solution/minisgl/limited.py", ".radix", ".nowhere", "nowhere is not in"),
        ("solution/minisgl/limited.py", "RadixCache\n\n", "Other\n\n", "has no Other"),
        ("test_exercise.py", "LimitedCache\n", "Nothing\n", "has no Nothing"),
        ("solution/minisgl/limited.py", "from __", "import yaml\nfrom __", "yaml"),
    ],
)  # fmt: skip
def test_lint_finds_what_is_wrong(root, path, old, new, message):
    if old is None:
        (root / LIMIT / path).unlink()
    else:
        edit(root, f"{LIMIT}/{path}", old, new)
    lines = [line for line in found(root) if line.startswith(LIMIT)]
    assert any(re.search(message, line) for line in lines), lines


def test_lint_knows_what_an_overlay_may_hold(root):
    write(root, f"{LIMIT}/solution/minisgl/radix.py",
          (root / "minisgl/radix.py").read_text())  # fmt: skip
    write(root, f"{LIMIT}/solution/tests/x.py", "")
    write(root, f"{LIMIT}/starter/minisgl/limited.py", LIMITED)
    expect(
        root,
        r"minisgl/radix\.py:1: ch02: is minisgl/radix.py of ch02 unchanged",
        r"tests/x\.py:1: ch02: lies neither in minisgl/ nor in stages/ch02",
        "starter/ does not belong here",
    )


def test_a_word_that_comes_later_may_not_be_used_by_an_exercise(root):
    edit(root, "stages/ch02-radix/stage.toml", '["RadixCache"]',
         '["RadixCache", "LimitedCache"]')  # fmt: skip
    folder = root / "stages/ch01-core/exercises"
    (root / LIMIT).parent.rename(folder)
    edit(root, "stages/ch01-core/exercises/limit/exercise.toml", "2-1", "1-1")
    edit(root, "stages/ch01-core/exercises/limit/exercise.toml", "= 2", "= 1")
    assert any(
        "LimitedCache is introduced in ch02" in line for line in found(root)
    )


def prove(root, *options):
    """Exit code and output of the proofs of a book with these tools."""
    if not (root / "tools").exists():
        copy_tools(root)
    return run(root, "exercises", "--check", *options)


def test_starters_and_solutions_are_proven(root):
    code, out = prove(root, "--full")
    assert code == 0, out
    assert out.startswith("exercises: 1 starters red, 1 solutions green")


def test_check_full_proves_them_too(root):
    copy_tools(root)
    code, out = run(root, "check", "--only", "2", "--full")
    assert code == 0, out
    assert "  exercises 1/1  ok" in out
    edit(root, f"{LIMIT}/mutants.toml", "del self.kept[key]", "self.limit += 0")
    edit(root, TEST, "is None", "in (None, 1)")
    code, out = run(root, "check", "--only", "2", "--full")
    assert code == 1
    assert "  exercises 0/1  FAIL" in out
    assert "the wrong solution 'forgets the newest' is green" in out


@pytest.mark.parametrize(
    ("edits", "options", "message"),
    [
        ([(SOLUTION, "> self.limit", ">= self.limit")], [],
         r"the solution: AssertionError"),
        ([(TEST, "LimitedCache(1)", "LimitedCache(1 / 0)")], [],
         "the starter: ZeroDivisionError"),
        ([(TEST, "    cache.insert((1,), 1)\n    cache.insert((2,), 2)",
           "    cache.kept[2,] = 2")], [], "the starter is green"),
        ([(TEST, "    assert cache.match((1,)) is None\n", ""),
          (TEST, "    assert cache.match((2,)) == 2\n", "")], ["--full"],
         "LimitedCache.insert without effect is green"),
    ],
)  # fmt: skip
def test_a_broken_exercise_is_red(root, edits, options, message):
    for path, old, new in edits:
        edit(root, path, old, new)
    code, out = prove(root, *options)
    assert code == 1, out
    assert re.search(message, out), out


def test_a_solution_that_breaks_its_chapter_is_red(root):
    text = (root / "minisgl/radix.py").read_text()
    write(root, f"{LIMIT}/solution/minisgl/radix.py",
          text.replace("self.kept.get(key)", "self.kept.get(key, 0)"))  # fmt: skip
    edit(root, TEST, "is None", "in (None, 0)")
    code, out = prove(root)
    assert code == 0, out
    code, out = prove(root, "--full")
    assert code == 1
    assert "the chapter's tests with the solution: AssertionError" in out


def test_from_start_to_green(clone):
    code, out = run(clone, "start", "ex02-1")
    assert code == 0, out
    mine = clone / "practice/ex02-1"
    assert "write     LimitedCache.insert in minisgl/limited.py:15" in out
    assert "then      cd practice/ex02-1 && python tools/steps.py grade" in out
    assert git(mine, "status", "--porcelain") == ""
    assert run(mine, "lint")[0] == 0
    assert git(mine, "branch", "--show-current") == "mine-ex02-1\n"
    assert git(clone, "status", "--porcelain") == ""

    code, out = run(mine, "grade")
    assert code == 1, out
    assert "exercise   1 of 2 tests pass\nchapter    not run before" in out
    assert "red for the right reason: what you write is not written yet" in out
    assert "still to write: LimitedCache.insert in minisgl/limited.py:15" in out

    assert "hint 1 of 2: One" in run(mine, "hint")[1]
    assert "hint 2 of 2: 二" in run(clone, "hint", "limit", "--zh")[1]
    assert "that was the last" in run(mine, "hint")[1]
    _, out = run(mine, "status")
    assert "open       ex02-1, here, started, red" in out
    assert "next       python tools/steps.py grade (A limit)" in out

    edit(mine, "minisgl/limited.py", STUB, "        self.kept[key] = value\n")
    code, out = run(clone, "grade", "ex02-1")
    assert code == 1
    assert "test_exercise.py::test_the_oldest_goes" in out
    assert "AssertionError: assert 1 is None" in out
    assert "still to write" not in out

    body = LIMITED[LIMITED.index("        super().insert") :]
    edit(mine, "minisgl/limited.py", "        self.kept[key] = value\n", body)
    code, out = run(mine, "grade")
    assert code == 0, out
    assert "exercise   2 of 2 tests pass\nchapter    2 of 2 tests pass\n" in out
    assert "GREEN: ex02-1 is done" in out
    code, out = run(clone, "grade", "ex02-1")
    assert code == 0 and out.count("2 of 2 tests pass, as nothing has") == 2
    code, out = run(mine, "grade", "-v")
    assert code == 0 and out.count("2 passed") == 2
    assert "byte for byte" in run(mine, "compare")[1]
    edit(mine, "minisgl/limited.py", "one too many", "one too much")
    _, out = run(clone, "compare", "limit")
    changed = [line for line in out.splitlines() if "one too" in line]
    assert [line[0] for line in changed] == ["-", "+"]
    _, out = run(clone, "status")
    assert "exercises   1 of 1 done  ex02-1" in out
    assert "next       python tools/steps.py start ch01 (The core)" in out
    assert "done 20" in run(clone, "exercises")[1]


def test_on_a_tag_all_of_it_is_known_too(clone):
    git(clone, "checkout", "-q", "ch01")
    assert "ex02-1  A limit" in run(clone, "exercises")[1]
    assert "ex02-1  上限" in run(clone, "exercises", lang="zh_CN.UTF-8")[1]
    assert run(clone, "start", "ex02-1")[0] == 0
    mine = clone / "practice/ex02-1"
    code, out = run(clone, "grade", "ex02-1")
    assert code == 1 and "red for the right reason" in out
    write(mine, "minisgl/limited.py", LIMITED)
    assert run(clone, "grade", "2-1")[0] == 0
    assert "byte for byte" in run(mine, "compare")[1]


def test_a_chapter_is_written_in_a_worktree(clone):
    code, out = run(clone, "start", "2")
    assert code == 0, out
    mine = clone / "practice/ch02"
    assert "write     RadixCache.match in minisgl/radix.py:14" in out
    code, out = run(mine, "grade")
    assert code == 1
    assert "chapter    1 of 2 tests pass\nred for the right reason" in out
    text = git(clone, "show", "ch02-done:minisgl/radix.py")
    write(mine, "minisgl/radix.py", text.replace("kept", "known"))
    code, out = run(mine, "grade")
    assert code == 0, out
    _, out = run(clone, "compare", "ch02")
    assert (
        "-        self.known[key] = value\n+        self.kept[key] = value"
        in out
    )
    assert "has no hints" in fails(clone, "hint", "ch02")


def test_a_chapter_is_written_on_its_tag(clone):
    git(clone, "checkout", "-q", "ch02")
    code, out = run(clone, "grade", "ch02")
    assert code == 1 and "red for the right reason" in out
    text = git(clone, "show", "ch02-done:minisgl/radix.py")
    write(clone, "minisgl/radix.py", text)
    assert run(clone, "grade", "ch02")[0] == 0
    code, out = run(clone, "start", "ch02")
    assert (
        "note      what you wrote in this checkout, uncommitted, stays" in out
    )
    assert run(clone, "grade", "ch02")[0] == 1  # the worktree's
    git(clone, "checkout", "-qf", "ch01-done")
    assert "ch01-done, which the book wrote" in fails(clone, "grade", "ch01")


def test_what_cannot_be_done_is_one_line(clone):
    assert "no exercise 'ex02-2': did you mean ex02-1" in fails(
        clone, "start", "ex02-2"
    )
    assert "this checkout has ch00 to ch02" in fails(clone, "start", "ch07")
    assert "name a chapter or an exercise" in fails(clone, "grade")
    assert "ex02-1 is not started" in fails(clone, "grade", "ex02-1")
    assert "ch02 is not started" in fails(clone, "compare", "ch02")
    assert "exists: name another folder" in fails(
        clone, "start", "limit", "docs"
    )
    run(clone, "start", "ex02-1", "elsewhere")
    assert "is started already: go on in" in fails(clone, "start", "ex02-1")
    git(clone, "worktree", "remove", "elsewhere")
    assert "mine-ex02-1 is left" in fails(clone, "start", "ex02-1")
    git(clone, "branch", "-D", "mine-ex02-1")
    write(clone, f"{TOML.replace('limit/', 'more/')}",
          (clone / TOML).read_text().replace("2-1", "2-2"))  # fmt: skip
    assert "commit it and run" in fails(clone, "start", "ex02-2")
    git(clone, "tag", "-d", "ch02-done")
    assert "there is no tag ch02-done" in fails(clone, "start", "ex02-1")


def test_a_grade_says_what_broke(clone):
    run(clone, "start", "ex02-1")
    mine = clone / "practice/ex02-1"
    write(
        mine,
        "minisgl/limited.py",
        LIMITED.replace("super().__init__()", "super("),
    )
    code, out = run(mine, "grade")
    assert code == 1
    assert "minisgl/limited.py:12 SyntaxError: '(' was never closed" in out
    write(mine, "minisgl/limited.py", LIMITED)
    edit(mine, "minisgl/core.py", "return RadixCache()", "return None")
    code, out = run(mine, "grade")
    assert code == 1
    assert "exercise   2 of 2 tests pass\nchapter    1 of 2 tests pass" in out
    assert "does its task, but breaks what the chapter had" in out
    assert "test_ch02_radix.py::test_the_engine_uses_it" in out
    (mine / "minisgl/core.py").unlink()
    code, out = run(mine, "grade")
    assert code == 2
    assert out.endswith(f"is missing in {mine}: git restore minisgl/core.py\n")


def test_the_books_tests_count(clone):
    run(clone, "start", "ex02-1")
    mine = clone / "practice/ex02-1"
    write(mine, TEST, "def test_nothing(): ...\n")
    code, out = run(mine, "grade")
    assert code == 1
    assert f"note: {TEST} is changed here; the book's own was run" in out
    assert "1 of 2 tests pass" in out


def test_the_pages_show_them(root):
    block = "<!-- exercises -->\n<!-- /exercises -->\n"
    table = "<!-- table: exercises -->\n<!-- /table -->\n"
    write(root, "docs/en/ch02-radix.md", f"# Two\n\n{block}")
    write(root, "docs/zh/ch02-radix.md", f"# 二\n\n{block}")
    write(root, "docs/en/exercises.md", f"# Exercises\n\n{table}\n{block}")
    assert update(root, check=False)[1] == []
    page, chinese, index = (
        (root / f"docs/{name}").read_text()
        for name in ("en/ch02-radix.md", "zh/ch02-radix.md", "en/exercises.md")
    )
    row = "- [ex02-1](exercises.md#ex02-1) **A limit**, ★☆☆, about 15 minutes\n"
    assert row in page
    assert (
        "- [ex02-1](exercises.md#ex02-1) **上限**，★☆☆，约 15 分钟\n" in chinese
    )
    link = "[ch02](ch02-radix.md)"
    assert f"| [ex02-1](#ex02-1) | A limit | {link} | ★☆☆ | 15 |\n" in index
    assert '### <a id="ex02-1"></a>ex02-1: A limit\n' in index
    assert "\nWrite `insert`.\n" in index
    write(root, "docs/en/ch01-core.md", f"# One\n\n{block}")
    assert "ch01 has no exercises" in update(root, check=False)[1][0]


@pytest.mark.parametrize(
    ("environment", "asked", "expected"),
    [
        ({"LANG": "zh_CN.UTF-8"}, None, "zh"),
        ({"LANG": "en_US.UTF-8"}, None, "en"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, None, "en"),
        ({}, None, "en"),
        ({"LANG": "zh_CN.UTF-8"}, False, "en"),
        ({}, True, "zh"),
    ],
)
def test_the_language_is_the_terminals(
    monkeypatch, environment, asked, expected
):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert language(asked) == expected
