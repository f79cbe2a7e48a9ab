"""Results of checks, kept by the hash of everything that went into them.

Lint looks at the whole book and is quick: it is no part of what is kept here.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tools.steplib import exercises
from tools.steplib.book import Book, Chapter
from tools.steplib.sandbox import inputs
from tools.steplib.venv import main_checkout

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pytest",
)


def input_hash(book: Book, chapter: Chapter, model: str) -> str:
    """Hash of the files of a chapter's build folder and of its exercises, the
    versions and options."""
    files = inputs(book, chapter)
    for path in sorted((chapter.dir / exercises.FOLDER).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[path.relative_to(book.root).as_posix()] = path
    return _hash(files, model)


def folder_hash(build: Path) -> str:
    """The same of all that lies in a build folder."""
    files = {
        path.relative_to(build).as_posix(): path
        for path in build.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return _hash(files, "")


def _hash(files: dict[str, Path], model: str) -> str:
    digest = hashlib.sha256()
    for name, source in sorted(files.items()):
        digest.update(f"{name}\0{_file_hash(source)}\n".encode())
    gpu = os.path.exists("/dev/nvidia0")
    facts = [
        platform.python_version(),
        *map(_version, _PACKAGES),
        model,
        str(gpu),
    ]
    digest.update("\n".join(facts).encode())
    return digest.hexdigest()


_hashes: dict[tuple[Path, int, int], str] = {}


def _file_hash(path: Path) -> str:
    stat = path.stat()
    key = (path, stat.st_mtime_ns, stat.st_size)
    if key not in _hashes:
        _hashes[key] = hashlib.sha256(path.read_bytes()).hexdigest()
    return _hashes[key]


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} missing"


def models_hash(folder: Path) -> str:
    """Hash of names, sizes and times of the checkpoints' files."""
    files = sorted(p for p in folder.glob("*/*") if p.is_file())
    rows = [f"{p.relative_to(folder)} {p.stat().st_size}" for p in files]
    times = [str(p.stat().st_mtime_ns) for p in files]
    return hashlib.sha256("\n".join([*rows, *times]).encode()).hexdigest()


class Grades:
    """Green sets of tests under ``.cache/grade`` of the main checkout.

    build: the folder in which they run, with all that they see.
    """

    def __init__(self, root: Path, build: Path) -> None:
        self.folder = main_checkout(root) / ".cache/grade"
        self.key = Cache(root).key(folder_hash(build))

    def load(self, name: str) -> int | None:
        """How many tests of a set passed when nothing was different."""
        path = self.folder / f"{self.key}.{name}"
        return int(path.read_text()) if path.is_file() else None

    def store(self, name: str, passed: int) -> None:
        """All tests of a set have passed."""
        _write(self.folder / f"{self.key}.{name}", passed)


class Cache:
    """Green results under ``.cache/check`` of the main checkout."""

    def __init__(self, root: Path) -> None:
        main = main_checkout(root)
        self.folder = main / ".cache/check"
        self.models = Path(os.environ.get("MINISGL_MODELS") or main / "models")

    def key(self, inputs: str) -> str:
        """The inputs' hash joined with that of the checkpoints as they are now."""
        both = inputs + models_hash(self.models)
        return hashlib.sha256(both.encode()).hexdigest()[:32]

    def load(self, inputs: str, full: bool) -> dict[str, Any] | None:
        """The kept green result, if it covers what is asked for."""
        try:
            path = self.folder / f"{self.key(inputs)}.json"
            kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return kept if kept["full"] or not full else None

    def store(self, chapter: str, inputs: str, result: dict[str, Any]) -> None:
        """Keep a green result; write any result's outcome to status.json.

        The key is made anew: the run itself may have made a checkpoint.
        """
        key = self.key(inputs)
        if result["ok"]:
            _write(self.folder / f"{key}.json", result)
        if not result["model"]:
            path = self.folder / "status.json"
            try:
                status = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                status = {}
            when = time.strftime("%Y-%m-%d %H:%M")
            entry = {"ok": result["ok"], "hash": key, "when": when}
            status[chapter] = entry | {"full": result["full"]}
            _write(path, dict(sorted(status.items())))


def _write(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(data, ensure_ascii=False, indent=1), "utf-8")
    scratch.replace(path)
