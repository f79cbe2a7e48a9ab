"""The generated blocks of a planted book's pages."""

import subprocess
import sys
import textwrap

import pytest

from tests.tools.planted import append, copy_tools, edit, write, write_book
from tools.steplib import upstream
from tools.steplib.cmd_docs import update
from tools.steplib.pages import BlockError, Page

PAGE = "docs/en/ch02-radix.md"


@pytest.fixture
def root(tmp_path):
    return write_book(tmp_path / "book")


def blocks(root, *markers, page=PAGE):
    """Write a page of empty blocks, refresh it, and return what they hold."""
    parts = [f"<!-- {m} -->\n<!-- /{m.split(':')[0]} -->\n" for m in markers]
    write(root, page, "# A page\n\n" + "\nText.\n\n".join(parts))
    stale, errors = update(root, check=False)
    assert errors == []
    assert len(stale) == len(markers)
    text = (root / page).read_text()
    found = []
    for part in text.split("\nText.\n\n"):
        body = part[part.index("-->\n") + 4 : part.rindex("<!-- /")]
        assert body.startswith("\n") and body.endswith("\n\n")
        found.append(body.strip("\n"))
    return found


def problem(root, marker, page=PAGE):
    """The one error that a page with this block gives."""
    write(
        root,
        page,
        f"# A page\n\n<!-- {marker} -->\n<!-- /{marker.split(':')[0]} -->",
    )
    before = (root / page).read_bytes()
    stale, errors = update(root, check=False)
    assert stale == [] and len(errors) == 1
    assert (root / page).read_bytes() == before
    assert errors[0].startswith(f"{page}:3: ")
    return errors[0].removeprefix(f"{page}:3: ")


def test_a_symbol(root):
    (body,) = blocks(root, "code: radix.py::RadixCache.match")
    assert body == textwrap.dedent('''\
        ```python title="minisgl/radix.py · RadixCache.match"
        def match(self, key: tuple[int, ...]) -> int | None:
            """Return the kept sum of `key`, or None."""
            return self.kept.get(key)
        ```''')


def test_code_comes_from_the_tree_of_the_page(root):
    (body,) = blocks(
        root, "code: core.py::make_cache", page="docs/en/ch01-core.md"
    )
    assert "-> NaiveCache:" in body
    new, old = blocks(root, "code: core.py::make_cache",
                      "code: minisgl/core.py::make_cache@ch01")  # fmt: skip
    assert "-> RadixCache:" in new
    assert old == body.replace('make_cache"', 'make_cache · ch01"', 1)


def test_a_general_page_shows_the_last_chapter(root):
    markers = "code: core.py::make_cache", "code: core.py::make_cache@ch01"
    new, old = blocks(root, *markers, page="docs/en/x.md")
    assert "-> RadixCache:" in new and "-> NaiveCache:" in old


@pytest.mark.parametrize(
    ("path", "title"),
    [
        ("main.py", "stages/ch02-radix/main.py"),
        ("stage:main.py", "stages/ch02-radix/main.py"),
        ("stages/ch00-step0/engine.py", "stages/ch00-step0/engine.py"),
        ("tests/test_ch01_core.py", "tests/test_ch01_core.py"),
        ("cache.py", "minisgl/cache.py"),
    ],
)
def test_whole_files(root, path, title):
    (body,) = blocks(root, f"code: {path}")
    text = (root / title).read_text().strip("\n")
    assert body == f'```python title="{title}"\n{text}\n```'


def test_lines_count_within_what_is_named(root):
    of_file, of_symbol = blocks(
        root, "code: core.py lines 1-3", "code: core.py::Req.answer lines 2-3"
    )
    assert of_file.split("\n")[1:-1] == (
        ['"""Requests and how they are answered."""', "",
         "from __future__ import annotations"]
    )  # fmt: skip
    assert of_file.startswith('```python title="minisgl/core.py · lines 1-3"')
    assert of_symbol == (
        '```python title="minisgl/core.py · Req.answer · lines 2-3"\n'
        '"""Return the sum of the numbers."""\nreturn sum(self.numbers)\n```'
    )


def test_a_fence_in_the_code_gets_a_longer_one(root):
    append(root, "minisgl/radix.py", 'FENCE = "```"\n')
    (body,) = blocks(root, "code: radix.py::FENCE")
    assert body.startswith("````python ") and body.endswith("\n````")


def test_tree_marks_what_the_chapter_did(root):
    edit(root, "stages/ch02-radix/stage.toml", "[check]",
         'early = { "utils/log.py" = "ch03" }\n[check]')  # fmt: skip
    write(root, "minisgl/utils/log.py", "")
    (body,) = blocks(root, "tree")
    assert [row.split(maxsplit=1) for row in body.split("\n")] == [
        ["```text"],
        ["minisgl/"],
        ["__init__.py"],
        ["cache.py"],
        ["core.py", "changed"],
        ["radix.py", "new"],
        ["utils/"],
        ["log.py", "early, see ch03"],
        ["```"],
    ]
    assert "\n    log.py" in body and "\n  utils/\n" in body
    (body,) = blocks(root, "tree", page="docs/en/ch01-core.md")
    assert "radix" not in body and "changed" not in body


def test_folders_that_the_chapter_leaves_alone_are_a_line(root):
    edit(root, "stages/ch02-radix/stage.toml", "[check]",
         'early = { "new/deep/log.py" = "ch03" }\n[check]')  # fmt: skip
    edit(root, "stages/ch01-core/stage.toml", '"core.py",',
         '"core.py", "old/a.py", "old/deep/b.py", "new/c/d.py",')  # fmt: skip
    for name in ("new/deep/log", "old/a", "old/deep/b", "new/c/d"):
        write(root, f"minisgl/{name}.py", "")
    (body,) = blocks(root, "tree")
    rows = [row.rstrip() for row in body.split("\n") if "radix" not in row]
    assert rows[5:-1] == [
        "  new/",
        "    c/         1 file",
        "    deep/",
        "      log.py   early, see ch03",
        "  old/         2 files",
    ]


def test_diff(root):
    (body,) = blocks(root, "diff: core.py")
    lines = body.split("\n")
    assert lines[0] == '```diff title="minisgl/core.py · ch01 → ch02"'
    assert lines[1].startswith("@@ ") and lines[-1] == "```"
    assert "-from minisgl.cache import NaiveCache" in lines
    assert "" in lines and " " not in lines
    assert "+from minisgl.radix import RadixCache" in lines


def test_output(root):
    write(
        root,
        "docs/outputs/fault.txt",
        "$ python tools/steps.py revert 1\nred\n",
    )
    own, other, file = blocks(
        root, "output", "output: ch01", "output: docs/outputs/fault.txt"
    )
    assert own == (
        "```console\n$ python tools/steps.py run 2\nanswer: 6\ncached: 6\n```"
    )
    assert "steps.py run 1\nanswer: 6\ncached: None\n" in other
    assert file == "```console\n$ python tools/steps.py revert 1\nred\n```"


def test_upstream_box(root):
    commit = upstream.facts()["commit"]
    cls, method, module = blocks(
        root,
        "upstream: kvcache/radix_cache.py::RadixPrefixCache",
        "upstream: core.py::Req.append_host",
        "upstream: core.py",
    )
    base = f"https://github.com/sgl-project/mini-sglang/blob/{commit}/python/minisgl"
    first, last = upstream.find("core.py", "Req.append_host").lines
    assert method == (
        '!!! upstream "mini-sglang · Req.append_host"\n'
        f"    [`minisgl/core.py` · lines {first}-{last}]"
        f"({base}/core.py#L{first}-L{last}):\n"
        "    `def append_host(self, next_token: torch.Tensor) -> None`"
    )
    assert "`class RadixPrefixCache(BasePrefixCache)`" in cls
    assert module.endswith(f"    [`minisgl/core.py`]({base}/core.py)")


def test_upstream_box_in_chinese(root):
    (box,) = blocks(
        root, "upstream: core.py::Req", page="docs/zh/ch02-radix.md"
    )
    assert " · 第 " in box and " 行]" in box


def test_table_of_chapters(root):
    (body,) = blocks(root, "table: chapters", page="docs/en/index.md")
    rows = body.split("\n")
    assert rows[0] == "| Chapter | Title | Naive | Real | Engine lines |"
    assert rows[2] == "| [ch00](ch00-step0.md) | Step 0 |  |  | 126 |"
    lines = sum(
        p.read_text().count("\n") for p in (root / "minisgl").glob("*.py")
    )
    assert rows[4] == (
        "| [ch02](ch02-radix.md) | The radix cache | `cache.py::NaiveCache` "
        f"| `radix.py::RadixCache` | {lines} |"
    )
    (body,) = blocks(root, "table: chapters", page="docs/zh/index.md")
    assert "| ch02 | 基数缓存 |" in body


def test_table_of_the_roadmap(root):
    (body,) = blocks(root, "table: roadmap", page="docs/en/index.md")
    rows = body.split("\n")[2:]
    assert len(rows) == 30
    assert (
        rows[0] == "| 0 Overview (days: 1) | [ch00](ch00-step0.md) | Step 0 |"
    )
    assert rows[2] == "|  | [ch02](ch02-radix.md) | The radix cache |"
    assert (
        rows[7]
        == "| 2 Scheduled well (days: 6) | ch07 | The scheduler's skeleton (planned) |"
    )


def modules_here(root):
    """Name every module that has no reason to be missing in ch02's manifest."""
    why = upstream.reasons()["missing"]
    here = [path for path in upstream.modules() if path not in why]
    new = [path for path in here if path not in ("__init__.py", "core.py")]
    names = "".join(f'"{path}", ' for path in new)
    edit(
        root, "stages/ch02-radix/stage.toml", "add      = [", f"add = [{names}"
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_table_of_modules(root, language):
    modules_here(root)
    (body,) = blocks(
        root, "table: modules", page=f"docs/{language}/upstream.md"
    )
    rows = body.split("\n")[2:]
    assert len(rows) == len(upstream.modules())
    link = upstream.url(upstream.find("core.py"))
    lines = upstream.modules()["core.py"]["lines"]
    chapters = "[ch01](ch01-core.md), [ch02](ch02-radix.md)"
    if language == "zh":
        chapters = "ch01, ch02"
    assert (
        f"| [`core.py`]({link}) | {lines} | `minisgl/core.py` | {chapters} |"
        in rows
    )
    missing = upstream.reasons()["missing"]
    path = next(path for path in missing if "::" not in path)
    if language == "en":
        [row] = [r for r in rows if r.startswith(f"| [`{path}`]")]
        assert f"| {missing[path]} |" in row


def test_a_module_without_file_or_reason_is_an_error(root, monkeypatch):
    modules_here(root)
    why = upstream.reasons()
    path = next(iter(why["missing"]))
    del why["missing"][path]
    monkeypatch.setattr(upstream, "reasons", lambda: why)
    said = problem(root, "table: modules", page="docs/en/upstream.md")
    assert said.startswith(f"table: {path}: neither here nor in ")


def test_every_reason_for_a_module_is_about_one_of_upstream():
    why = (
        upstream.reasons()
    )  # reasons for symbols: tests/test_upstream_interface.py
    modules = [key for key in why["missing"] if "::" not in key]
    assert modules
    assert [key for key in modules if key not in upstream.modules()] == []


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("code: nope.py", "code: minisgl/nope.py: no such file in ch02"),
        ("code: radix.py::RadixCache.nope", "code: RadixCache.nope: not defined there"),
        ("code: radix.py some words", "code: 'radix.py some words': the form is code:"),
        ("code: core.py@ch07", "code: no chapter 'ch07'"),
        ("code: tests/nope.py", "code: tests/nope.py: no such file in ch02"),
        ("code: core.py lines 9-99", "code: lines 9-99: minisgl/core.py has 23 lines"),
        ("diff: nope.py", "diff: minisgl/nope.py: no such file in ch01"),
        ("diff: radix.py", "diff: minisgl/radix.py: no such file in ch01"),
        ("diff: cache.py", "diff: minisgl/cache.py: ch02 does not change it"),
        ("output: ch09", "output: no chapter 'ch09'"),
        ("output: docs/no.txt", "output: docs/no.txt: No such file or directory"),
        ("output: pyproject.toml", "output: pyproject.toml: its first line must be"),
        ("upstream: nope.py", "upstream: nope.py: upstream has no such module"),
        ("upstream: core.py::Nope", "upstream: core.py::Nope: upstream has no such"),
        ("upstream: core.py::Req.nope", "upstream: core.py::Req.nope: upstream has no"),
        ("table: chapters", "table: tables tell of all chapters"),
    ],
)  # fmt: skip
def test_a_wrong_block_is_named(root, marker, said):
    assert problem(root, marker).startswith(said)


@pytest.mark.parametrize(
    ("page", "marker", "said"),
    [
        (
            "ch01-core.md",
            "code: radix.py",
            "code: minisgl/radix.py: no such file in",
        ),
        (
            "ch01-core.md",
            "code: core.py@ch02",
            "code: ch02 is later than this page's",
        ),
        (
            "ch01-core.md",
            "code: stages/ch02-radix/main.py",
            "code: stages/ch02-radix",
        ),
        (
            "ch01-core.md",
            "output: ch02",
            "output: ch02 is later than this page's",
        ),
        ("ch00-step0.md", "tree", "tree: ch00 has no package yet"),
        (
            "ch00-step0.md",
            "diff: main.py",
            "diff: ch00 has no chapter before it",
        ),
        ("ch07-new.md", "tree", "tree: no chapter '7'"),
        (
            "index.md",
            "table: nope",
            "table: no table 'nope'; known: chapters, ",
        ),
    ],
)
def test_a_page_sees_only_its_chapter(root, page, marker, said):
    assert problem(root, marker, page=f"docs/en/{page}").startswith(said)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            "# A\n<!-- tree -->\nx\n",
            2,
            "<!-- tree --> is not closed by <!-- /tree -->",
        ),
        ("<!-- tree -->\n<!-- /code -->\n", 1, "is not closed"),
        (
            "<!-- tree -->\n<!-- output -->\n<!-- /output -->\n",
            1,
            "is not closed",
        ),
        ("x\n\n<!-- /tree -->\n", 3, "<!-- /tree --> unopened"),
    ],
)
def test_markers_come_in_pairs(root, text, line, said):
    page = Page(root / PAGE, PAGE, text)
    with pytest.raises(BlockError) as error:
        page.blocks()
    assert str(error.value).startswith(f"{PAGE}:{line}: ")
    assert said in str(error.value)


def test_markers_in_fences_and_words_are_text(root):
    text = (
        "```md\n<!-- tree -->\n```\n\nSay `<!-- tree -->`.\n<!-- a remark -->\n"
    )
    write(root, PAGE, text)
    assert update(root, check=False) == ([], [])
    assert (root / PAGE).read_text() == text


def test_an_indented_block_stays_in_its_admonition(root):
    write(
        root,
        PAGE,
        '??? note "Code"\n    <!-- tree -->\n    <!-- /tree -->\nEnd\n',
    )
    update(root, check=False)
    rows = (root / PAGE).read_text().split("\n")
    assert rows[1:5] == ["    <!-- tree -->", "", "    ```text", "    minisgl/"]
    assert rows[-4:] == ["", "    <!-- /tree -->", "End", ""]


def test_check_finds_one_changed_byte_and_writes_nothing(root):
    blocks(root, "tree", "code: core.py::Req.answer")
    assert update(root, check=True) == ([], [])
    edit(root, "minisgl/core.py", "the sum of the", "the total of the")
    before = (root / PAGE).read_bytes()
    stale, errors = update(root, check=True)
    line = (
        before.decode().split("\n").index("<!-- code: core.py::Req.answer -->")
        + 1
    )
    assert (stale, errors) == ([f"{PAGE}:{line}"], [])
    assert (root / PAGE).read_bytes() == before
    update(root, check=False)
    assert update(root, check=True) == ([], [])


def test_text_around_the_blocks_is_untouched(root):
    write(
        root,
        PAGE,
        "no end of line \t\n\n<!-- tree -->\n<!-- /tree -->\n\n\nlast",
    )
    update(root, check=False)
    text = (root / PAGE).read_text()
    assert text.startswith("no end of line \t\n\n<!-- tree -->\n\n```text\n")
    assert text.endswith("\n```\n\n<!-- /tree -->\n\n\nlast")


def test_a_wrong_page_does_not_stop_the_others(root):
    write(root, "docs/zh/ch01-core.md", "<!-- tree -->\n<!-- /tree -->\n")
    write(root, PAGE, "<!-- code: nope.py -->\n<!-- /code -->\n")
    stale, errors = update(root, check=False)
    assert stale == ["docs/zh/ch01-core.md:1"] and len(errors) == 1


def test_the_command_exits_1_and_names_page_and_line(root):
    steps = copy_tools(root)
    write(root, PAGE, "# A\n\n<!-- tree -->\n<!-- /tree -->\n")

    def docs(*options):
        return subprocess.run([sys.executable, str(steps), "docs", *options], cwd=root,
                              capture_output=True, text=True)  # fmt: skip

    red = docs("--check")
    assert red.returncode == 1
    assert f"{PAGE}:3: stale block" in red.stderr
    assert docs().returncode == 0
    green = docs("--check")
    assert (green.returncode, green.stderr) == (0, "")


def test_the_pages_of_a_tag_rest(root):
    steps = copy_tools(root)
    write(root, "stages/TAG.md", "# A tag\n")
    text = "# A\n\n<!-- tree -->\n<!-- /tree -->\n"
    write(root, PAGE, text)
    for options in ([], ["--check"]):
        command = [sys.executable, str(steps), "docs", *options]
        subprocess.run(command, cwd=root, check=True, capture_output=True)
    assert (root / PAGE).read_text() == text
