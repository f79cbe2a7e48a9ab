"""A chapter sees only itself: every way around that is planted and must be red."""

import json
import subprocess
import sys
import sysconfig
import venv

import pytest

from tests.tools.checking import MAIN, add_test, check, make_book, messages
from tests.tools.planted import append, edit, write, write_book

# As setuptools writes it for `pip install -e` of a flat layout.
FINDER = """\
import sys
from importlib.machinery import PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path

MAPPING = {mapping!r}


class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        for package, folder in MAPPING.items():
            if fullname == package or fullname.startswith(package + "."):
                rest = fullname[len(package):].replace(".", "/")
                for end in ("/__init__.py", ".py"):
                    file = Path(folder + rest + end)
                    if file.is_file():
                        return spec_from_file_location(fullname, file)
        return None


def install():
    sys.meta_path.append(_EditableFinder)
"""
FINDER_NAME = "__editable___handwritten_minisgl_0_1_0_finder"


@pytest.fixture
def book(tmp_path):
    return make_book(tmp_path / "book")


@pytest.fixture
def other(tmp_path):
    """Another checkout of the same book."""
    return write_book(tmp_path / "other")


def ch01(book, python=sys.executable):
    code, out, err = check(book, "--only", "1", "--json", python=python)
    assert out, err
    row = json.loads(out)["chapters"][0]
    assert row["ok"] == (code == 0)
    return row


def assert_leak(row, text):
    assert not row["ok"]
    leaks = [
        f["message"]
        for f in row["failures"]
        if f["message"].startswith("leak: ")
    ]
    assert any(text in leak for leak in leaks), messages(row)


NOT_THERE = """
import importlib, multiprocessing, subprocess, sys
import pytest
from tests.fakes.late import late
with pytest.raises(ImportError):
    importlib.import_module("minisgl." + "radix")  # lint sees a plain import
words = [sys.executable, "-c", "import minisgl.core; import minisgl." + "radix"]
done = subprocess.run(words, capture_output=True, text=True)
assert "No module named 'minisgl.radix'" in done.stderr, done.stderr
with multiprocessing.get_context("spawn").Pool(1) as pool:
    assert pool.apply(late) == "no module"
"""
LATE = '''\
"""For a spawned process."""


def late() -> str:
    import minisgl.core
    try:
        import minisgl.radix
    except ImportError:
        return "no module"
    return minisgl.radix.__file__
'''


def test_an_editable_install_is_not_seen(book, tmp_path):
    """Neither by forked nor by spawned processes; plain Python would see it."""
    venv.create(tmp_path / "venv", symlinks=True)
    python = str(tmp_path / "venv/bin/python")
    scheme = {
        "base": str(tmp_path / "venv"),
        "platbase": str(tmp_path / "venv"),
    }
    site = sysconfig.get_path("purelib", "venv", vars=scheme)
    finder = FINDER.format(mapping={"minisgl": str(book / "minisgl")})
    write(tmp_path, f"{site}/{FINDER_NAME}.py", finder)
    load = f"import {FINDER_NAME}; {FINDER_NAME}.install()\n"
    write(tmp_path, f"{site}/__editable__.pth", load)
    write(
        tmp_path, f"{site}/packages.pth", f"{sysconfig.get_path('purelib')}\n"
    )
    plain = [
        python,
        "-c",
        "import minisgl.radix; print(minisgl.radix.__file__)",
    ]
    seen = subprocess.run(plain, cwd=tmp_path, capture_output=True, text=True)
    assert seen.stdout.strip() == str(book / "minisgl/radix.py"), seen.stderr

    write(book, "tests/fakes/late.py", LATE)
    add_test(book, NOT_THERE)
    row = ch01(book, python)
    assert row["ok"], messages(row)


def test_an_editable_finder_that_a_main_installs(book, other):
    finder = FINDER.format(mapping={"minisgl": str(other / "minisgl")})
    # Not FINDER_NAME: an editable install of this package has it in use.
    name = "__editable___other_tree_finder"
    write(book, f"stages/ch01-core/{name}.py", finder)
    append(
        book,
        MAIN,
        f"    import {name} as f; f.install(); import minisgl.radix\n",
    )
    assert_leak(ch01(book), f"{other}/minisgl/radix.py")


def test_a_main_of_another_tree(book, other):
    edit(
        book, MAIN, "str(Path(__file__).resolve().parents[2])", repr(str(other))
    )
    assert_leak(ch01(book), f"module minisgl.core from {other}/minisgl/core.py")


def test_the_repository_on_the_path_of_a_test(book):
    purge = "for name in [n for n in sys.modules if n.startswith('minisgl')]:\n"
    add_test(
        book,
        f"import sys\nsys.path.insert(0, {str(book)!r})\n{purge}"
        "    del sys.modules[name]\nimport minisgl.radix",
    )
    assert_leak(ch01(book), f"{book}/minisgl/radix.py")


@pytest.mark.parametrize("name", ["minisgl.core", "harmless"])
def test_a_load_by_path_under_any_name(book, name):
    add_test(
        book,
        f"""
import importlib.util as util
spec = util.spec_from_file_location({name!r}, {str(book / "minisgl/core.py")!r})
spec.loader.exec_module(util.module_from_spec(spec))
""",
    )
    assert_leak(ch01(book), f"code {book}/minisgl/core.py")


def test_a_subprocess_that_imports_the_repository(book):
    words = (
        f"import sys; sys.path.insert(0, {str(book)!r}); import minisgl.radix"
    )
    add_test(
        book,
        f"import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {words!r}], check=True)",
    )
    assert_leak(ch01(book), f"{book}/minisgl/radix.py")


def test_a_killed_process_has_already_told(book):
    words = (
        f"import sys; sys.path.insert(0, {str(book)!r}); import minisgl.radix;"
        "import os; os.kill(os.getpid(), 9)"
    )
    add_test(
        book,
        f"import subprocess, sys\n"
        f"assert subprocess.run([sys.executable, '-c', {words!r}]).returncode == -9",
    )
    assert_leak(ch01(book), f"{book}/minisgl/radix.py")


def test_a_spawned_worker(book):
    late = LATE.replace(
        "    import minisgl.core\n",
        f"    import sys; sys.path.insert(0, {str(book)!r})\n"
        "    import minisgl.core\n",
    )
    write(book, "tests/fakes/late.py", late)
    add_test(
        book,
        """
import multiprocessing
from tests.fakes.late import late
with multiprocessing.get_context("spawn").Pool(1) as pool:
    pool.apply(late)
""",
    )
    edit(
        book,
        "tests/fakes/late.py",
        "import minisgl.core\n",
        "for n in [n for n in sys.modules if n.startswith('minisgl')]:\n"
        "        del sys.modules[n]\n    import minisgl.core\n",
    )
    assert_leak(ch01(book), f"{book}/minisgl/")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("[sys.executable, '-I', '-c', '']", "ignores the environment"),
        ("[sys.executable, '-sE', '-c', '']", "ignores the environment"),
        (
            "[sys.executable, '-c', ''], env={}",
            "without the checker's environment",
        ),
    ],
)
def test_a_process_that_cannot_be_watched(book, call, text):
    add_test(book, f"import subprocess, sys\nsubprocess.run({call})")
    assert_leak(ch01(book), text)


def test_other_processes_are_nobodys_business(book):
    add_test(
        book,
        "import subprocess, sys\n"
        "subprocess.run(['true'], env={}, check=True)\n"
        "subprocess.run([sys.executable, '-c', 'import minisgl.core'], check=True)",
    )
    row = ch01(book)
    assert row["ok"], messages(row)


PARENT = """
import os, sys
from pathlib import Path
from tools.steplib import child, forks, guard
import minisgl.core

def body():
    import minisgl.core
    return {{"file": minisgl.core.__file__}}

def task(env):
    return (yield [child.Job("x", Path({build!r}), body, 30, env)])[0]

{change}
outcome = next(forks.Pool(1).run([task(dict(os.environ))]))
print(outcome.value["file"], *outcome.leaks, sep="\\n")
"""


@pytest.mark.parametrize("purged", [True, False])
def test_a_module_the_parent_had_imported(book, other, purged):
    change = "" if purged else "guard.purge = lambda: None"
    code = PARENT.format(build=str(other), change=change)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=book, capture_output=True, text=True
    )
    file, *leaks = done.stdout.splitlines()
    if purged:
        assert (file, leaks) == (f"{other}/minisgl/core.py", [])
    else:
        assert f"module minisgl.core from {book}/minisgl/core.py" in leaks
