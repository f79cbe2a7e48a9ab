"""A whole three-chapter book in miniature, for tests of the tools.

No torch anywhere: the "engine" adds numbers, its "parity" is Python's own sum.
Every chapter builds, its main prints what output.txt says, its tests pass, its
mutants die; ch02 changes core.py, so ch01 holds a frozen copy.

    root = write_book(tmp_path / "book")
    edit(root, "minisgl/core.py", "old text", "new text")   # plant a fault
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

PYPROJECT = """\
[project]
name = "planted"
version = "0"

[tool.pytest.ini_options]
addopts = ["--import-mode=importlib", "--strict-markers", "-q"]
pythonpath = ["."]
testpaths = ["tests"]
markers = ["parity: equal to the reference", "until(chapter, reason): before it",
           "slow: full runs only"]
"""

PARITY = '''\
"""The reference every chapter is compared with."""


def reference(numbers: list[int]) -> int:
    return sum(numbers)
'''

ENGINE = '''\
"""Step 0: add numbers by hand."""


def generate(numbers: list[int]) -> int:
    total = 0
    for number in numbers:
        total += number
    return total
'''
ENGINE += "".join(f"# line {i}\n" for i in range(ENGINE.count("\n") + 1, 127))

MAIN00 = '''\
"""Step 0 at work."""

from engine import generate

if __name__ == "__main__":
    print("step 0:", generate([1, 2, 3]))
'''

TEST00 = """\
import importlib.util
from pathlib import Path

import pytest

from tests.parity import reference

ENGINE = Path(__file__).parents[1] / "stages/ch00-step0/engine.py"


def load():
    spec = importlib.util.spec_from_file_location("step0_engine", ENGINE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parity
def test_sum():
    assert load().generate([1, 2, 3]) == reference([1, 2, 3])
"""

STAGE00 = """\
title    = { en = "Step 0", zh = "第零步" }
part     = 0
needs    = "cpu"
deps     = []
[files]
add      = []
[check]
model    = "qwen3-tiny"
tests    = ["tests/test_ch00_step0.py"]
"""

INIT = '"""A tiny engine that adds numbers."""\n'

CACHE = '''\
"""The naive cache: it remembers nothing."""

from __future__ import annotations


class NaiveCache:
    """Never hits."""

    def match(self, key: tuple[int, ...]) -> int | None:
        """Return None: nothing was kept."""
        return None

    def insert(self, key: tuple[int, ...], value: int) -> None:
        """Drop `value`."""
'''

CORE01 = '''\
"""Requests and how they are answered."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.cache import NaiveCache


@dataclass
class Req:
    """One request: the numbers to add."""

    numbers: list[int]

    def answer(self) -> int:
        """Return the sum of the numbers."""
        return sum(self.numbers)


def make_cache() -> NaiveCache:
    """Return the cache that this engine uses."""
    return NaiveCache()
'''

CORE02 = '''\
"""Requests and how they are answered."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.radix import RadixCache


@dataclass
class Req:
    """One request: the numbers to add."""

    numbers: list[int]

    def answer(self) -> int:
        """Return the sum of the numbers."""
        return sum(self.numbers)


def make_cache() -> RadixCache:
    """Return the cache that this engine uses."""
    return RadixCache()
'''

RADIX = '''\
"""A cache that remembers."""

from __future__ import annotations

from .cache import NaiveCache


class RadixCache(NaiveCache):
    """Keeps every sum."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], int] = {}

    def match(self, key: tuple[int, ...]) -> int | None:
        """Return the kept sum of `key`, or None."""
        return self.kept.get(key)

    def insert(self, key: tuple[int, ...], value: int) -> None:
        """Keep `value` for `key`."""
        self.kept[key] = value
'''

MAIN01 = '''\
"""One request by hand."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from minisgl.core import Req, make_cache

if __name__ == "__main__":
    print("answer:", Req([1, 2, 3]).answer())
    print("cached:", make_cache().match((1, 2, 3)))
'''

MAIN02 = MAIN01.replace(
    "One request by hand", "One request, remembered"
).replace(
    '    print("cached:", make_cache().match((1, 2, 3)))\n',
    "    cache = make_cache()\n"
    "    cache.insert((1, 2, 3), 6)\n"
    '    print("cached:", cache.match((1, 2, 3)))\n',
)

TEST01 = """\
import pytest

from minisgl.core import Req, make_cache
from tests.parity import reference


@pytest.mark.parity
def test_answer():
    assert Req([1, 2, 3]).answer() == reference([1, 2, 3])


def test_empty_cache_misses():
    assert make_cache().match((1,)) is None


def test_naive_forgets():
    from minisgl.cache import NaiveCache

    cache = NaiveCache()
    cache.insert((1,), 1)
    assert cache.match((1,)) is None
"""

TEST02 = """\
import pytest

from minisgl.core import Req, make_cache
from minisgl.radix import RadixCache
from tests.parity import reference


@pytest.mark.parity
def test_remembers():
    cache = RadixCache()
    cache.insert((1, 2), Req([1, 2]).answer())
    assert cache.match((1, 2)) == reference([1, 2])
    assert cache.match((2,)) is None


def test_the_engine_uses_it():
    assert isinstance(make_cache(), RadixCache)
"""

STAGE01 = """\
title    = { en = "The core", zh = "核心" }
part     = 1
deps     = []
[files]
add      = ["__init__.py", "core.py", "cache.py"]
[check]
tests    = ["tests/test_ch01_core.py"]
[guard]
introduces = ["NaiveCache"]
[write]
stubs    = ["core.py::Req.answer"]
[upstream]
symbols  = ["core.py::Req"]
"""

STAGE02 = """\
title    = { en = "The radix cache", zh = "基数缓存" }
part     = 2
deps     = []
swaps    = { old = "cache.py::NaiveCache", new = "radix.py::RadixCache" }
[files]
add      = ["radix.py"]
change   = ["core.py"]
[check]
tests    = ["tests/test_ch02_radix.py"]
[guard]
introduces = ["RadixCache"]
[write]
stubs    = ["radix.py::RadixCache.match", "radix.py::RadixCache.insert"]
[upstream]
symbols  = ["radix.py::RadixCache.match"]
"""

MUTANTS01 = """\
[[mutant]]
path = "core.py"
find = "return sum(self.numbers)"
replace = "return sum(self.numbers[1:])"
why = "forgets the first number"
"""

MUTANTS02 = """\
[[mutant]]
path = "radix.py"
find = "self.kept[key] = value"
replace = "self.kept[key] = value + 1"
why = "keeps a wrong sum"
"""

PAGE = """\
# {title}

In words we may look ahead to RadixCache.

```python
print("{title}")
```
"""

LIMITED = '''\
"""A cache that forgets the oldest."""

from __future__ import annotations

from .radix import RadixCache


class LimitedCache(RadixCache):
    """Keeps `limit` sums."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def insert(self, key: tuple[int, ...], value: int) -> None:
        """Keep `value`, and forget what came first if there is one too many."""
        super().insert(key, value)
        if len(self.kept) > self.limit:
            del self.kept[next(iter(self.kept))]
'''

TEST_LIMITED = """\
from minisgl.limited import LimitedCache


def test_the_oldest_goes():
    cache = LimitedCache(1)
    cache.insert((1,), 1)
    cache.insert((2,), 2)
    assert cache.match((1,)) is None
    assert cache.match((2,)) == 2


def test_the_limit_is_noted():
    assert LimitedCache(3).limit == 3
"""

EXERCISE = """\
id         = "ex02-1"
title      = { en = "A limit", zh = "上限" }
chapter    = 2
difficulty = 1
minutes    = 15
stubs      = ["limited.py::LimitedCache.insert"]
"""

MUTANTS_LIMITED = """\
[[mutant]]
path = "limited.py"
find = "del self.kept[next(iter(self.kept))]"
replace = "del self.kept[key]"
why = "forgets the newest"
"""

LIMIT = "stages/ch02-radix/exercises/limit"
EXERCISE_FILES: dict[str, str] = {
    f"{LIMIT}/exercise.toml": EXERCISE,
    f"{LIMIT}/statement.en.md": "# A limit\n\nWrite `insert`.\n",
    f"{LIMIT}/statement.zh.md": "# 上限\n\n写出 `insert`。\n",
    f"{LIMIT}/hints.en.md": "# Hints\n\n## One\n\nA.\n\n## Two\n\nB.\n",
    f"{LIMIT}/hints.zh.md": "# 提示\n\n## 一\n\n甲。\n\n## 二\n\n乙。\n",
    f"{LIMIT}/test_exercise.py": TEST_LIMITED,
    f"{LIMIT}/mutants.toml": MUTANTS_LIMITED,
    f"{LIMIT}/solution/minisgl/limited.py": LIMITED,
}

FILES: dict[str, str] = {
    "pyproject.toml": PYPROJECT,
    ".gitignore": ".cache/\n__pycache__/\n.pytest_cache/\nmodels/\n.venv/\n",
    "minisgl/__init__.py": INIT,
    "minisgl/cache.py": CACHE,
    "minisgl/core.py": CORE02,
    "minisgl/radix.py": RADIX,
    "stages/ch00-step0/stage.toml": STAGE00,
    "stages/ch00-step0/engine.py": ENGINE,
    "stages/ch00-step0/main.py": MAIN00,
    "stages/ch00-step0/output.txt": "step 0: 6\n",
    "stages/ch01-core/stage.toml": STAGE01,
    "stages/ch01-core/main.py": MAIN01,
    "stages/ch01-core/output.txt": "answer: 6\ncached: None\n",
    "stages/ch01-core/mutants.toml": MUTANTS01,
    "stages/ch01-core/files/minisgl/core.py": CORE01,
    "stages/ch02-radix/stage.toml": STAGE02,
    "stages/ch02-radix/main.py": MAIN02,
    "stages/ch02-radix/output.txt": "answer: 6\ncached: 6\n",
    "stages/ch02-radix/mutants.toml": MUTANTS02,
    "tests/parity.py": PARITY,
    "tests/conftest.py": '"""Nothing to set up."""\n',
    "tests/test_ch00_step0.py": TEST00,
    "tests/test_ch01_core.py": TEST01,
    "tests/test_ch02_radix.py": TEST02,
    "docs/en/ch00-step0.md": PAGE.format(title="Step 0"),
    "docs/en/ch01-core.md": PAGE.format(title="The core"),
    "docs/en/ch02-radix.md": PAGE.format(title="The radix cache"),
}


def write_book(root: Path) -> Path:
    """Write the book under `root` (made if missing) and return `root`."""
    for path, text in FILES.items():
        write(root, path, text)
    return root


def add_exercise(root: Path) -> Path:
    """Add ch02's exercise, a cache with a limit, to the book; return `root`."""
    for path, text in EXERCISE_FILES.items():
        write(root, path, text)
    return root


def write(root: Path, path: str, text: str) -> Path:
    """Create or overwrite ``root/path``."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def edit(root: Path, path: str, old: str, new: str) -> None:
    """Replace the first `old` in ``root/path``; `old` must be there."""
    text = (root / path).read_text(encoding="utf-8")
    assert old in text, f"{path} does not hold {old!r}"
    write(root, path, text.replace(old, new, 1))


def append(root: Path, path: str, text: str) -> None:
    """Add `text` at the end of ``root/path``."""
    write(root, path, (root / path).read_text(encoding="utf-8") + text)


def copy_tools(root: Path) -> Path:
    """Copy this repository's tools/ into the book; return its steps.py."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "tools", root / "tools", ignore=ignore)
    return root / "tools/steps.py"


def git(root: Path, *args: str) -> str:
    """Run git in `root`, free of the caller's configuration; return its stdout."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for who in ("AUTHOR", "COMMITTER"):
        env |= {
            f"GIT_{who}_NAME": "Planted",
            f"GIT_{who}_EMAIL": "planted@localhost",
        }
    done = subprocess.run(
        ["git", *args],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def git_init(root: Path) -> Path:
    """Make `root` a git repository with everything committed on main."""
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "The planted book")
    return root
