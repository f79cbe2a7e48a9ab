"""The comparison with upstream, on planted modules."""

import pytest

from tools.steplib.interface import compare, problems
from tools.steplib.package import Package


def method(signature, *decorators):
    return {
        "signature": signature,
        "decorators": list(decorators),
        "lines": [1, 2],
    }


def cls(bases=(), decorators=(), fields=(), methods=None):
    return {
        "bases": list(bases),
        "decorators": list(decorators),
        "fields": {n: {"annotation": "int", "default": d} for n, d in fields},
        "methods": methods or {},
    }


UPSTREAM = {
    "core.py": {
        "exports": ["LIMIT"],
        "functions": {"plan": {"signature": "(a: int, b: int=0, *, c=None)"}},
        "classes": {
            "Req": cls(
                decorators=["dataclass(eq=False)"],
                fields=[
                    ("uid", None),
                    ("cached", "0"),
                    ("slot", "field(init=False)"),
                ],
                methods={
                    "__post_init__": method("(self)"),
                    "__repr__": method("(self)"),
                    "remain": method("(self)", "property"),
                    "append": method("(self, token: int)"),
                },
            ),
            "Pool": cls(
                methods={
                    "__init__": method("(self, pages, size=1)"),
                    "make": method("(cls, n)", "classmethod"),
                }
            ),
        },
    },
    "kernel.py": {"exports": [], "functions": {}, "classes": {}},
}
OURS = """
from dataclasses import dataclass, field
from .parts import Pool, LIMIT

def plan(a, b=0, *, c=None, extra=1): ...

@dataclass
class Req:
    uid: int
    cached: int = 0
    remain: int = field(init=False)

    def append(self, token): self.slot = token
"""
PARTS = """
LIMIT = 3

class Base:
    def __init__(self, pages, size=1, device=None): ...
    @classmethod
    def make(cls, n): ...

class Pool(Base):
    pass
"""


@pytest.fixture
def found(tmp_path):
    def run(old="", new="", parts=PARTS):
        assert old in OURS + parts
        (tmp_path / "core.py").write_text(
            OURS.replace(old, new) if old else OURS
        )
        text = parts.replace(old, new) if old else parts
        (tmp_path / "parts.py").write_text(text)
        (tmp_path / "kernel.py").touch()
        differences = compare(UPSTREAM, Package(tmp_path))
        return [f"{f.kind} {f.key}: {f.what}" for f in differences]

    return run


def test_compatible_package_has_no_finding(found):
    assert found() == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("def plan", "def plot", "missing core.py::plan: no such function here"),
        ("def plan(a, b=0", "def plan(b, a=0",
         "changed core.py::plan: parameter 1 is 'b', not 'a'"),
        ("b=0, *,", "b, *,", "changed core.py::plan: parameter 'b' has no default"),
        ("c=None, extra=1", "extra=1", "changed core.py::plan: keyword 'c' is missing"),
        ("extra=1", "extra",
         "changed core.py::plan: extra parameter 'extra' has no default"),
        ("def plan(a, b=0, *, c=None, extra=1): ...", "plan = print",
         "changed core.py::plan: is not a plain function here"),
        ("class Req", "class Request", "missing core.py::Req: no such class here"),
        ("    uid: int\n", "", "missing core.py::Req.uid: no such field here"),
        ("    uid: int\n    cached: int = 0\n", "    cached: int\n    uid: int\n",
         "changed core.py::Req.__init__: parameter 1 is 'cached', not 'uid'"),
        ("cached: int = 0", "cached: int",
         "changed core.py::Req.__init__: parameter 'cached' has no default"),
        ("cached: int = 0", "cached: int = 0\n    more: int",
         "changed core.py::Req.__init__: extra parameter 'more' has no default"),
        ("cached: int = 0", "cached: int = field(init=False)",
         "changed core.py::Req.__init__: parameter 'cached' is missing"),
        ("self.slot = token", "...", "missing core.py::Req.slot: no such field here"),
        ("    remain: int = field(init=False)", "    def remain(self): ...",
         "changed core.py::Req.remain: a property there, a method here"),
        ("def append(self, token)", "def append(self, new)",
         "changed core.py::Req.append: parameter 1 is 'new', not 'token'"),
        ("def append(self, token): self.slot = token", "append: int = 0; slot = 1",
         "changed core.py::Req.append: a method there, an attribute here"),
        ("size=1, device=None", "width=1, device=None",
         "changed core.py::Pool.__init__: parameter 2 is 'width', not 'size'"),
        ("def make(cls, n)", "def make(cls, n, m)",
         "changed core.py::Pool.make: extra parameter 'm' has no default"),
        ("import Pool, LIMIT", "import Pool",
         "missing core.py::LIMIT: not exported here"),
    ],
)  # fmt: skip
def test_each_difference_is_found_alone(found, old, new, expected):
    assert found(old, new) == [expected]


def test_missing_module(tmp_path):
    assert [f.key for f in compare(UPSTREAM, Package(tmp_path))] == [
        "core.py",
        "kernel.py",
    ]


def test_reasons_cover_exactly_what_differs(tmp_path):
    differences = compare(UPSTREAM, Package(tmp_path))
    table = {"core.py": "arrives in ch07", "kernel*": "not needed"}
    assert problems(differences, {"missing": table}, newest=6) == []
    late = problems(differences, {"missing": table}, newest=7)
    assert late == ["core.py: 'arrives in ch07', but that chapter is here"]
    bare = problems(differences, {"missing": {"core.py": "x"}}, newest=6)
    assert bare == ["kernel.py: missing: no such module here"]


def test_reason_without_difference_is_stale(found):
    assert found() == []
    reasons = {
        "missing": {"core.py::Req.uid": "x"},
        "changed": {"*::plan": "y"},
    }
    assert problems([], reasons, newest=0) == [
        "*::plan: listed as changed but is not; delete it",
        "core.py::Req.uid: listed as missing but is not; delete it",
    ]
