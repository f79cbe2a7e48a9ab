"""Keeps a process of the checker inside its build folder and reports leaks.

Standard library only: a copy of this file is the ``sitecustomize.py`` of every
Python process that a chapter starts, so it may not need the repository.

A leak is package code that does not lie in the build folder. Each is written at
once as one line of the file that MINISGL_LEAKS names, so that a process that is
killed has still told.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
from functools import lru_cache
from typing import Any

PACKAGE = "minisgl"
BUILD = "MINISGL_BUILD"
LEAKS = "MINISGL_LEAKS"
PURGED = (PACKAGE, "tests", "tools", "conftest")
_STARTS = {"subprocess.Popen", "os.exec", "os.posix_spawn"}
_PYTHON = re.compile(r"(python|pypy)[\d.]*(\.exe)?$")


def activate(build: str, leaks: str) -> None:
    """Confine this process, and whatever it starts, to the folder `build`."""
    os.environ.update({BUILD: build, LEAKS: leaks})
    drop_finders()
    clean_path(build)
    purge()
    sys.addaudithook(_Watcher(build, leaks))


def drop_finders() -> None:
    """Remove the import hooks of an editable install of the package."""
    sys.meta_path[:] = [f for f in sys.meta_path if not _is_editable(f)]
    sys.path_hooks[:] = [h for h in sys.path_hooks if not _is_editable(h)]
    sys.path_importer_cache.clear()


def _is_editable(hook: Any) -> bool:
    module = str(getattr(hook, "__module__", ""))
    if "editable" not in module.lower():
        return False
    mapping = getattr(sys.modules.get(module), "MAPPING", {})
    return PACKAGE in module.lower() or PACKAGE in mapping


def clean_path(build: str) -> None:
    """Put `build` first on sys.path and drop entries that hold another package."""
    kept = [
        p for p in sys.path if not _same(p, build) and not _holds_package(p)
    ]
    sys.path[:] = [build, *kept]


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _holds_package(folder: str) -> bool:
    if "__editable__" in folder:
        return PACKAGE in folder.lower()
    return os.path.isfile(os.path.join(folder, PACKAGE, "__init__.py"))


def purge() -> None:
    """Forget modules that the parent may have imported from the repository."""
    for name in list(sys.modules):
        if name.partition(".")[0] in PURGED:
            del sys.modules[name]


def scan(build: str, leaks: str) -> None:
    """Report modules of the package that lie outside `build`, however loaded."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != PACKAGE:
            continue
        path = getattr(module, "__file__", None)
        if path is not None and not _inside(path, build):
            report(leaks, f"module {name} from {path}")


def report(leaks: str, text: str) -> None:
    """Append one line to the leak file; a single write, so lines stay whole."""
    handle = os.open(leaks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(handle, f"{text}\n".encode())
    os.close(handle)


@lru_cache(maxsize=4096)
def _inside(path: str, build: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(build) + os.sep)


@lru_cache(maxsize=4096)
def _package_root(path: str) -> str | None:
    """The folder that holds the package which `path` is part of, if any."""
    parts = path.split(os.sep)
    for at, part in enumerate(parts):
        root = os.sep.join(parts[:at])
        if part == PACKAGE and _holds_package(root):
            return root
    return None


class _Watcher:
    """Audit hook: sees code run by any loader, and Python started unguarded."""

    def __init__(self, build: str, leaks: str) -> None:
        self.build, self.leaks = build, leaks
        self.told: set[str] = set()

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "exec":
            path = getattr(args[0], "co_filename", "")
            if f"{os.sep}{PACKAGE}{os.sep}" in path:
                self._code(path)
        elif event in _STARTS:
            self._process(args[0], args[1], args[-1])

    def _code(self, path: str) -> None:
        if _package_root(path) and not _inside(path, self.build):
            self._tell(f"code {path}")

    def _process(self, program: Any, argv: Any, env: Any) -> None:
        words = [os.fsdecode(word) for word in argv] if argv else []
        name = os.path.basename(os.fsdecode(program or (words or [""])[0]))
        if not _PYTHON.match(name):
            return
        names = {
            os.fsdecode(key) for key in (os.environ if env is None else env)
        }
        if not {BUILD, LEAKS, "PYTHONPATH"} <= names:
            self._tell(f"process without the checker's environment: {words}")
        elif _isolating(words[1:]):
            self._tell(f"process that ignores the environment: {words}")

    def _tell(self, text: str) -> None:
        if text not in self.told:
            self.told.add(text)
            report(self.leaks, text)


def _isolating(words: list[str]) -> bool:
    """Whether Python's options (those before the program) include -I, -E or -S."""
    for word in words:
        if (
            not word.startswith("-")
            or word.startswith(("-c", "-m"))
            or word == "-"
        ):
            return False
        if not word.startswith("--") and set(word) & set("IES"):
            return True
    return False


if __name__ == "sitecustomize" and BUILD in os.environ:
    activate(os.environ[BUILD], os.environ[LEAKS])
    atexit.register(scan, os.environ[BUILD], os.environ[LEAKS])
