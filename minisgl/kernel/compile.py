"""From a C++ source to functions that Python calls; compiled once a machine.

The functions take 64-bit integers (addresses, sizes, strides) and return one,
so that a kernel's source needs no header of torch or of Python.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from minisgl.utils import init_logger

logger = init_logger(__name__)

Target = Literal["host", "simulator", "cuda"]
"""host: C++, for the CPU. simulator: CUDA C++, for the CPU. cuda: for a GPU."""

CSRC = Path(__file__).parent / "csrc"
HOST_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")

_WRONG = re.compile(r"error:|fatal|cannot find|not found", re.IGNORECASE)


class BuildError(RuntimeError):
    """A kernel cannot be compiled here; the text is one line."""


class Library:
    """The functions of a shared library as attributes."""

    def __init__(self, path: Path) -> None:
        # PyDLL holds Python's lock: the calls are short, and a simulated GPU is
        # no place for two threads.
        self._library = ctypes.PyDLL(str(path))

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self._library, f"py_{name}")
        function.restype = ctypes.c_int64
        function.argtypes = [ctypes.c_void_p, ctypes.c_int64]

        def call(*values: int) -> int:
            count = len(values)
            packed = (ctypes.c_int64 * count)(*values)
            result: int = function(packed, count)
            return result

        setattr(self, name, call)  # not found by __getattr__ again
        return call


def binding(files: list[str], wrappers: list[tuple[str, str]]) -> str:
    """A source that includes `files` and exports functions for ctypes.

    wrappers: for each its name in Python, and the C++ function.
    """
    lines = [f'#include "{name}"' for name in [*files, "call.h"]]
    for name, code in wrappers:
        # A name of its own: C++ would take it for another overload.
        lines += [
            'extern "C" __attribute__((visibility("default")))',
            f"int64_t py_{name}(const int64_t* values, int64_t count) {{",
            f"  return call({code}, values, count);",
            "}",
        ]
    return "\n".join([*lines, ""])


def build(
    name: str,
    files: list[str],
    wrappers: list[tuple[str, str]],
    target: Target,
    folder: Path | None = None,
    flags: Sequence[str] = (),
) -> Library:
    """A library with these functions, from `folder` or the user's cache.

    flags: for the host's compiler, beside those that it is always given.

    Raises:
        BuildError: no compiler, or it finds fault with the source.
    """
    source = binding(files, wrappers)
    known = [_sources(), source, target, *flags, *_toolchain(target)]
    digest = sha256("\0".join(known).encode()).hexdigest()[:16]
    place = (folder or cache_folder()) / f"{name}-{digest}"
    if target == "cuda":
        return Library(_build_cuda(f"{name}_{digest}", source, place))
    return Library(_build_host(name, source, place, flags))


@cache
def cache_folder() -> Path:
    """Where compiled kernels stay; for this run only if home is read-only."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(home).expanduser() / "minisgl" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="minisgl-kernels-"))


@cache
def _sources() -> str:
    """A digest of everything that a source can include."""
    paths = sorted(path for path in CSRC.rglob("*") if path.is_file())
    return sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


@cache
def host_compiler() -> str:
    for name in ("g++", "c++", "clang++"):
        if found := shutil.which(name):
            return found
    raise BuildError("no C++ compiler (g++) is installed")


def _toolchain(target: Target) -> list[str]:
    """What else a library depends on."""
    if target != "cuda":
        compiler = Path(host_compiler())
        return [str(compiler), str(compiler.stat().st_mtime_ns)]
    return [torch.__version__, str(torch.cuda.get_device_capability())]


def _build_host(
    name: str, source: str, place: Path, flags: Sequence[str]
) -> Path:
    library = place / f"{name}.so"
    if not library.is_file():
        # Another process may be at it: each makes its own, then renames.
        with (
            _announced(name, Path(host_compiler()).name, place),
            tempfile.TemporaryDirectory(dir=place) as scratch,
        ):
            made = compile_host(name, source, Path(scratch), flags)
            made.replace(library)
    return library


def compile_host(
    name: str, source: str, folder: Path, more: Sequence[str] = ()
) -> Path:
    """Write `source` and a library of it into `folder`; return the library."""
    written, library = folder / "binding.cpp", folder / f"{name}.so"
    written.write_text(source)
    flags = [*HOST_FLAGS, *more, "-Wno-unknown-pragmas", f"-I{CSRC}", "-xc++"]
    command = [host_compiler(), *flags, str(written), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(first_error(done.stderr))
    return library


def _build_cuda(name: str, source: str, place: Path) -> Path:
    """Through a library that knows nvcc's flags and locks the folder."""
    with _announced(name, "nvcc", place, quiet=any(place.glob("*.so"))):
        written = place / "binding.cu"
        if not written.is_file():
            scratch = place / f"binding.{os.getpid()}"
            scratch.write_text(source)
            scratch.replace(written)
        settings: dict[str, Any] = {
            "name": name,
            "sources": [str(written)],
            "extra_include_paths": [str(CSRC)],
            "build_directory": str(place),
        }
        try:
            if find_spec("tvm_ffi") is not None:
                return Path(import_module("tvm_ffi.cpp").build(**settings))
            loader = import_module("torch.utils.cpp_extension")
            return Path(loader.load(**settings, is_python_module=False))
        except (ImportError, OSError, RuntimeError) as error:
            raise BuildError(first_error(str(error))) from error


@contextmanager
def _announced(
    name: str, compiler: str, place: Path, quiet: bool = False
) -> Iterator[None]:
    """One line in the log and, on a terminal, something that moves."""
    place.mkdir(parents=True, exist_ok=True)
    if quiet:
        yield
        return
    logger.info(f"compiling {name} with {compiler}, once; kept in {place}")
    console = Console(stderr=True, quiet=not sys.stderr.isatty())
    with console.status(f"Compiling {name}"):
        yield


def first_error(text: str) -> str:
    """The line of a compiler's output that says what is wrong, and where."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    wrong = [line for line in lines if _WRONG.search(line)]
    found = next(iter([*wrong, *lines[-1:]]), "the compiler says nothing")
    place, colon, rest = found.partition(":")
    return f"{Path(place).name}{colon}{rest}"
