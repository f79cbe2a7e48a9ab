"""The folder in which a chapter is checked, and the environment of its processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tools.steplib import guard
from tools.steplib.book import PACKAGE, Book, Chapter
from tools.steplib.stubs import STAGE
from tools.steplib.venv import main_checkout

HOOKS = "sitecustomize"
_SKIP = shutil.ignore_patterns("__pycache__", "*.pyc")
QUIET = {
    "COLUMNS": "80",
    "LINES": "24",
    "NO_COLOR": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONIOENCODING": "utf-8",
    "TERM": "dumb",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


def inputs(book: Book, chapter: Chapter) -> dict[str, Path]:
    """Path in the build folder -> file it is copied from, for one chapter."""
    found = {
        f"{PACKAGE}/{path}": source
        for path, source in book.tree(chapter.number).items()
    }
    stage = f"stages/{chapter.name}"
    found |= {f"{stage}/{p.name}": p for p in _files(chapter.dir)}
    # Later chapters may drive step 0, which is an engine of its own.
    step0 = book.chapters[0].dir / "engine.py"
    if step0.is_file():
        found[step0.relative_to(book.root).as_posix()] = step0
    tests = book.root / "tests"
    found |= {
        f"tests/{p.name}": p
        for p in _files(tests)
        if p.suffix == ".py" and not p.name.startswith("test_")
    }
    folders = [tests / "fakes", tests / "reverts", book.root / "tools"]
    for path in (p for folder in folders for p in sorted(folder.rglob("*"))):
        if path.is_file() and "__pycache__" not in path.parts:
            found[path.relative_to(book.root).as_posix()] = path
    for name in [*chapter.tests, "pyproject.toml"]:
        if (book.root / name).is_file():
            found[name] = book.root / name
    return found


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_file())


def make_build(book: Book, chapter: Chapter, dest: Path) -> Path:
    """Write the chapter's build folder: package, its stage, tests, tools."""
    for name, source in inputs(book, chapter).items():
        target = dest / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return dest


def variant(
    build: Path, name: str, edits: dict[str, str]
) -> tuple[Path, Callable[[], None]]:
    """A folder beside `build`, and what makes it a copy with some texts replaced
    or added."""
    dest = build.parent / f"{build.name}.{name}"

    def make() -> None:
        shutil.copytree(build, dest, ignore=_SKIP)
        for path, text in edits.items():
            (dest / path).parent.mkdir(parents=True, exist_ok=True)
            (dest / path).write_text(text, encoding="utf-8")

    return dest, make


def place(chapter: Chapter, path: str) -> str:
    """Where a stub's or mutant's `path` lies in the build folder.

    ``stage:engine.py`` is beside main.py; any other path is inside the package.
    """
    if path.startswith(STAGE):
        return f"stages/{chapter.name}/{path.removeprefix(STAGE)}"
    return f"{PACKAGE}/{path.removeprefix(f'{PACKAGE}/')}"


def make_hooks(work: Path) -> Path:
    """Make `work`'s ``tmp``, and the folder that is returned: the
    ``sitecustomize.py`` in it guards every Python process started."""
    folder = work / HOOKS
    folder.mkdir(parents=True, exist_ok=True)
    (work / "tmp").mkdir()
    shutil.copyfile(guard.__file__, folder / "sitecustomize.py")
    return folder


def environment(
    book: Book, chapter: Chapter, build: Path, hooks: Path
) -> dict[str, str]:
    """Environment variables of the processes that run in `build`."""
    main = main_checkout(book.root)
    env = dict(os.environ)
    for name in (
        "PYTHONHOME",
        "PYTHONSAFEPATH",
        "PYTHONSTARTUP",
        "PYTEST_ADDOPTS",
    ):
        env.pop(name, None)
    env |= {
        "TMPDIR": str(hooks.parent / "tmp"),  # goes with the rest
        "PYTHONPATH": os.pathsep.join([str(build), str(hooks)]),
        "MINISGL_CHAPTER": str(chapter.number),
        "MINISGL_MODELS": os.environ.get("MINISGL_MODELS")
        or str(main / "models"),
        "MINISGL_CACHE": os.environ.get("MINISGL_CACHE")
        or str(main / ".cache"),
        guard.BUILD: str(build),
        guard.LEAKS: str(build.parent / f"{build.name}.leaks"),
    }
    return env


def quiet(env: dict[str, str], threads: int, model: str) -> dict[str, str]:
    """The same for output that is compared: fixed width, no colours, few threads."""
    env = env | QUIET
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env[name] = str(threads)
    env.pop("MINISGL_TEST_MODEL", None)
    return env | ({"MINISGL_TEST_MODEL": model} if model else {})
