"""The tags of a planted three-chapter book."""

import pytest

from tests.tools.planted import (
    LIMIT,
    LIMITED,
    add_exercise,
    append,
    edit,
    git,
    git_init,
    write,
    write_book,
)
from tools.steplib.cmd_tag import run
from tools.steplib.gitrepo import Repo
from tools.steplib.stubs import stub_source
from tools.steplib.tagtree import TagError, build

NAMES = ["ch00", "ch00-done", "ch01", "ch01-done", "ch02", "ch02-done"]


@pytest.fixture
def root(tmp_path):
    book = add_exercise(write_book(tmp_path / "book"))
    edit(book, "stages/ch00-step0/stage.toml", "[check]",
         '[write]\nstubs = ["stage:engine.py::generate"]\n[check]')  # fmt: skip
    write(book, "docs/zh/ch02-radix.md", "# x\n")
    write(book, "docs/assets/ch02-split.svg", "<svg/>\n")
    write(book, "docs/en/index.md", "# The book, ch00 to ch02\n")
    write(book, "tests/tools/test_x.py", "")
    return git_init(book)


def commit(root):
    git(root, "commit", "-qam", "an edit")


def hashes(root):
    rows = git(root, "for-each-ref", "--format=%(refname:short) %(objectname)",
               "refs/tags")  # fmt: skip
    return dict(row.split() for row in rows.splitlines())


def files(root, tag):
    return set(git(root, "ls-tree", "-r", "--name-only", tag).split())


def show(root, tag, path):
    return git(root, "show", f"{tag}:{path}")


def changed(root, *between):
    return set(
        git(root, "diff", "--no-renames", "--name-only", *between).split()
    )


def test_one_chain_with_a_fixed_identity(root):
    count, lines = run(root, check=False)
    assert count == len(lines) == 6
    assert sorted(hashes(root)) == NAMES
    log = git(
        root, "log", "--format=%D|%s|%an|%cn|%ct", "ch02-done"
    ).splitlines()
    assert [row.split("|")[0] for row in reversed(log)] == [
        f"tag: {n}" for n in NAMES
    ]
    assert log[1].split("|")[1] == "ch02: the radix cache (start)"
    assert log[4].split("|")[1] == "ch00: Step 0 (done)"
    assert {tuple(row.split("|")[2:4]) for row in log} == {
        ("handwritten-minisgl",) * 2
    }
    dates = [int(row.split("|")[4]) for row in log]
    assert dates == sorted(set(dates), reverse=True)


def test_same_hashes_again_and_in_another_clone(root, tmp_path):
    run(root, check=False)
    first = hashes(root)
    assert run(root, check=False) == (6, [])
    assert hashes(root) == first
    git(tmp_path, "clone", "-q", "--no-tags", str(root), "second")
    assert hashes(tmp_path / "second") == {}
    run(tmp_path / "second", check=False)
    assert hashes(tmp_path / "second") == first


def test_head_counts_and_the_checkout_is_left_alone(root, monkeypatch):
    run(root, check=False)
    first = hashes(root)
    append(root, "minisgl/radix.py", "# not committed\n")
    write(root, "tests/parity.py", "# staged\n")
    git(root, "add", "tests/parity.py")
    status = git(root, "status", "--porcelain")
    monkeypatch.setenv("GIT_INDEX_FILE", str(root / "elsewhere"))
    assert run(root, check=False) == (6, [])
    assert git(root, "status", "--porcelain") == status
    assert hashes(root) == first


def test_a_start_tag_is_the_chapter_with_stubs(root):
    run(root, check=False)
    assert changed(root, "ch02", "ch02-done") == {"minisgl/radix.py"}
    done = show(root, "ch02-done", "minisgl/radix.py")
    names = ["RadixCache.match", "RadixCache.insert"]
    assert show(root, "ch02", "minisgl/radix.py") == stub_source(done, names)
    assert 'raise NotImplementedError("write RadixCache.match")' in show(
        root, "ch02", "minisgl/radix.py"
    )
    assert "return RadixCache()" in show(root, "ch02", "minisgl/core.py")
    assert changed(root, "ch01", "ch01-done") == {"minisgl/core.py"}


def test_a_stub_may_lie_in_the_stage_folder(root):
    run(root, check=False)
    assert changed(root, "ch00", "ch00-done") == {"stages/ch00-step0/engine.py"}
    engine = show(root, "ch00", "stages/ch00-step0/engine.py")
    assert 'raise NotImplementedError("write generate")' in engine


def test_done_tags_hold_no_stub_and_no_solution(root):
    run(root, check=False)
    for name in NAMES[1::2]:
        for path in files(root, name):
            assert "/solution/" not in path
            if "/starter/" not in path:
                assert "NotImplementedError(" not in show(root, name, path)


def test_tags_hold_starters_in_the_place_of_solutions(root):
    run(root, check=False)
    kept = {"exercise.toml", "test_exercise.py", "starter/minisgl/limited.py"}
    kept |= {
        f"{k}.{e}.md" for k in ("statement", "hints") for e in ("en", "zh")
    }
    for name in ("ch02", "ch02-done"):
        there = {p for p in files(root, name) if p.startswith(LIMIT)}
        assert there == {f"{LIMIT}/{path}" for path in kept}
        starter = show(root, name, f"{LIMIT}/starter/minisgl/limited.py")
        assert starter == stub_source(LIMITED, ["LimitedCache.insert"])
        assert starter != LIMITED
    assert not [p for p in files(root, "ch01-done") if "exercises" in p]


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        ("exercise.toml", "Cache.insert", "Cache.nope", r"ex02-1: .*nope"),
        ("exercise.toml", "limited.py", "other.py", r"other\.py is not in its"),
    ],
)
def test_wrong_exercises_are_named(root, path, old, new, message):
    edit(root, f"{LIMIT}/{path}", old, new)
    commit(root)
    with pytest.raises(TagError, match=message):
        build(Repo(root))


def test_the_difference_of_two_chapters_is_the_chapter(root):
    run(root, check=False)
    assert changed(root, "ch01-done", "ch02-done") == {
        "docs/assets/ch02-split.svg",
        "docs/en/ch02-radix.md",
        "docs/zh/ch02-radix.md",
        "minisgl/core.py",
        "minisgl/radix.py",
        "stages/ch01-core/files/minisgl/core.py",
        f"{LIMIT}/exercise.toml",
        f"{LIMIT}/hints.en.md",
        f"{LIMIT}/hints.zh.md",
        f"{LIMIT}/starter/minisgl/limited.py",
        f"{LIMIT}/statement.en.md",
        f"{LIMIT}/statement.zh.md",
        f"{LIMIT}/test_exercise.py",
        "stages/ch02-radix/main.py",
        "stages/ch02-radix/mutants.toml",
        "stages/ch02-radix/output.txt",
        "stages/ch02-radix/stage.toml",
        "tests/test_ch02_radix.py",
    }


def test_trees_are_small_repositories(root):
    run(root, check=False)
    first = files(root, "ch00-done")
    assert not [p for p in first if p.startswith("minisgl/") or "ch01" in p]
    general = {"tests/parity.py", "tests/tools/test_x.py", "docs/en/index.md",
               "pyproject.toml", ".gitignore", "stages/TAG.md"}  # fmt: skip
    assert general <= first
    core = "stages/ch01-core/files/minisgl/core.py"
    assert core not in files(root, "ch01-done")
    assert show(root, "ch01-done", "minisgl/core.py") == show(
        root, "main", core
    )
    assert core in files(root, "ch02")


def test_the_last_done_tag_holds_the_package_of_head(root):
    run(root, check=False)
    assert not git(root, "diff", "ch02-done", "HEAD", "--", "minisgl")
    assert changed(root, "ch02-done", "HEAD") == {
        "stages/TAG.md",
        f"{LIMIT}/mutants.toml",
        f"{LIMIT}/solution/minisgl/limited.py",
        f"{LIMIT}/starter/minisgl/limited.py",
    }


def test_a_test_without_a_number_comes_with_the_chapter_that_lists_it(root):
    write(root, "tests/test_pages.py", "")
    edit(root, "stages/ch01-core/stage.toml", '"tests/test_ch01_core.py"',
         '"tests/test_ch01_core.py", "tests/test_pages.py"')  # fmt: skip
    git(root, "add", "tests/test_pages.py")
    commit(root)
    run(root, check=False)
    assert "tests/test_pages.py" not in files(root, "ch00-done")
    assert "tests/test_pages.py" in files(root, "ch01")


def test_check_sees_a_change_and_tag_moves_what_it_touches(root):
    assert len(run(root, check=True)[1]) == 6
    assert hashes(root) == {}
    run(root, check=False)
    assert run(root, check=True) == (6, [])
    before = hashes(root)
    append(root, "minisgl/radix.py", "# more\n")
    commit(root)
    stale = ["ch02: stale or missing", "ch02-done: stale or missing"]
    assert run(root, check=True) == (6, stale)
    assert hashes(root) == before
    run(root, check=False)
    after = hashes(root)
    assert run(root, check=True) == (6, [])
    assert {n for n in NAMES if before[n] != after[n]} == {"ch02", "ch02-done"}


def test_check_writes_no_object(root):
    def objects():
        return git(root, "count-objects")

    before = objects()
    run(root, check=True)
    assert objects() == before


def test_only_moves_two_tags(root):
    assert run(root, check=False, only="1")[0] == 2
    assert sorted(hashes(root)) == ["ch01", "ch01-done"]
    assert len(run(root, check=True)[1]) == 4


def test_a_tag_of_a_chapter_that_went_is_removed_but_no_stranger(root):
    run(root, check=False)
    git(root, "tag", "ch07", "ch02-done")
    git(root, "tag", "ch08", "main")
    assert run(root, check=True)[1] == ["ch07: no such chapter any more"]
    run(root, check=False)
    assert sorted(hashes(root)) == sorted([*NAMES, "ch08"])


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        ("ch01-core", "Req.answer", "Req.nope", r"ch01: .*Req\.nope"),
        ("ch02-radix", "radix.py::RadixCache.match", "cache.py::NaiveCache.match",
         r"cache\.py: not a file of this chapter"),
        ("ch00-step0", "stage:engine.py", "stage:nope.py", r"not in its tree"),
        ("ch01-core", '"cache.py"', '"cash.py"', r"but no manifest names it"),
        ("ch01-core", '"cache.py"', '"cache.py", "cash.py"', r"cash\.py: a manifest"),
    ],
)  # fmt: skip
def test_wrong_manifests_are_named(root, path, old, new, message):
    text = (
        (root / f"stages/{path}/stage.toml").read_text().rpartition("[write]")
    )
    if old.startswith('"'):
        edit(root, f"stages/{path}/stage.toml", old, new)
    else:
        write(root, f"stages/{path}/stage.toml",
              text[0] + text[1] + text[2].replace(old, new))  # fmt: skip
    commit(root)
    with pytest.raises(TagError, match=message):
        build(Repo(root))
