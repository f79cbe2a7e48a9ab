"""Stubbing and extracting named pieces of source."""

import ast

import pytest

from tools.steplib.stubs import (
    extract_source,
    parse_target,
    stub_source,
    target_file,
)

SOURCE = '''\
import os

# how many
LIMIT: int = 3

def one(a): return a


@cached
# kept
def wide(
    a: int = 3,  # é, a comment: (
    *, pick=lambda x: x,
) -> "dict[str, int]":
    """Doc é."""  # after it
    # a secret
    x = a + 1

    return {"é": x}
    # a trailing secret

# about Box
class Box:
    size = 3

    @property
    def item(self):  # header
        return 1

    @item.setter
    def item(self, v):
        """Two
        lines."""
        self.v = v

    async def wait(self):
        """Only a docstring."""

    if True:
        def late(self):
            def inner(): pass
            return inner

def last():
    x = 1; return "é"'''

STUBBED = '''\
import os

# how many
LIMIT: int = 3

def one(a):
    raise NotImplementedError("write one")


@cached
# kept
def wide(
    a: int = 3,  # é, a comment: (
    *, pick=lambda x: x,
) -> "dict[str, int]":
    """Doc é."""  # after it
    raise NotImplementedError("write wide")

# about Box
class Box:
    size = 3

    @property
    def item(self):  # header
        raise NotImplementedError("write Box.item")

    @item.setter
    def item(self, v):
        """Two
        lines."""
        raise NotImplementedError("write Box.item")

    async def wait(self):
        """Only a docstring."""
        raise NotImplementedError("write Box.wait")

    if True:
        def late(self):
            raise NotImplementedError("write Box.late")

def last():
    raise NotImplementedError("write last")'''

ALL = ["one", "wide", "Box.item", "Box.wait", "Box.late", "last"]


def test_bodies_go_and_every_other_byte_stays():
    assert stub_source(SOURCE, ALL) == STUBBED
    ast.parse(STUBBED)


def test_nothing_named_changes_nothing():
    assert stub_source(SOURCE, []) == SOURCE


def test_one_name_leaves_the_others_alone():
    before, after = SOURCE.split("\n"), stub_source(SOURCE, ["one"]).split("\n")
    assert after[:5] == before[:5]
    assert after[5:7] == [
        "def one(a):",
        '    raise NotImplementedError("write one")',
    ]
    assert after[7:] == before[6:]


def test_a_function_inside_a_stubbed_one_needs_no_stub_of_its_own():
    assert stub_source(SOURCE, ["Box.late.inner", "Box.late"]) == stub_source(
        SOURCE, ["Box.late"]
    )
    inner = stub_source(SOURCE, ["Box.late.inner"])
    assert (
        'def inner():\n                raise NotImplementedError("write Bo'
        in inner
    )


def test_overloads_keep_their_dots():
    text = "@overload\ndef f(a: int): ...\ndef f(a):\n    return a\n"
    want = "@overload\ndef f(a: int): ...\ndef f(a):\n    raise NotImplementedError"
    assert stub_source(text, ["f"]).startswith(want)


def test_a_long_name_is_shortened_to_fit_the_line():
    cls, name = "C" * 30, "m" * 30
    stub = stub_source(f"class {cls}:\n    def {name}(self):\n        pass\n",
                       [f"{cls}.{name}"])  # fmt: skip
    assert max(map(len, stub.split("\n"))) <= 80
    assert f'"write {name}"' in stub


@pytest.mark.parametrize("name", ["nope", "Box", "LIMIT", "Box.nope", "one.a"])
def test_an_unknown_function_is_named(name):
    with pytest.raises(ValueError, match=name):
        stub_source(SOURCE, [name])


def test_a_stub_raises_when_called():
    space: dict = {}
    exec(stub_source("def f(a):\n    return a\n", ["f"]), space)
    with pytest.raises(NotImplementedError, match="write f"):
        space["f"](1)


@pytest.mark.parametrize(
    ("name", "first", "last", "opening"),
    [
        ("LIMIT", 3, 4, "# how many\nLIMIT"),
        ("wide", 9, 19, "@cached\n# kept\ndef wide("),
        ("Box", 22, 42, "# about Box\nclass Box:"),
        ("Box.size", 24, 24, "    size = 3\n"),
        ("Box.item", 26, 28, "    @property\n    def item"),
        ("Box.late", 40, 42, "        def late"),
    ],
)
def test_extract(name, first, last, opening):
    start, end, source = extract_source(SOURCE, name)
    assert (start, end) == (first, last)
    assert source.startswith(opening)
    assert source == "".join(SOURCE.splitlines(True)[first - 1 : last])


def test_extract_unknown():
    with pytest.raises(ValueError, match=r"Box\.nope"):
        extract_source(SOURCE, "Box.nope")


def test_parse_target():
    assert parse_target("kvcache/radix.py::Tree.match") == (
        "kvcache/radix.py",
        "Tree.match",
    )
    for bad in ("a.py", "::f", "a.py::", "a.py::f g", "a.py::f..g"):
        with pytest.raises(ValueError, match="a target reads"):
            parse_target(bad)


def test_target_file(tmp_path):
    (tmp_path / "engine.py").write_text("")
    tree = {"core.py": tmp_path / "engine.py"}
    assert (
        target_file("stage:engine.py", tmp_path, tree) == tmp_path / "engine.py"
    )
    assert target_file("core.py", tmp_path, tree) == tmp_path / "engine.py"
    for bad in ("stage:core.py", "engine.py"):
        with pytest.raises(ValueError, match=r"no such file"):
            target_file(bad, tmp_path, tree)
