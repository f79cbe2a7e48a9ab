"""Rules about imports: they resolve at their chapter, deps came, files are reached."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tools.steplib.book import PACKAGE, Chapter
from tools.steplib.facts import Import, Modules
from tools.steplib.lint import Lint

# Import names whose distribution is called otherwise (both normalised).
DISTRIBUTIONS = {
    "cv2": "opencv-python",
    "flashinfer": "flashinfer-python",
    "git": "gitpython",
    "google": "protobuf",
    "jwt": "pyjwt",
    "pil": "pillow",
    "sklearn": "scikit-learn",
    "tvm-ffi": "apache-tvm-ffi",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
_OURS = {PACKAGE, "tests", "tools", "stages", "__future__"}


def check(lint: Lint) -> None:
    """Apply the rules of this module."""
    allowed: set[str] = set()
    seen: set[tuple[Path, int, str]] = set()
    for chapter in lint.book.chapters:
        allowed |= {distribution(dep) for dep in chapter.deps}
        _resolve(lint, chapter, seen)
        _third_party(lint, chapter, allowed)
        _reach(lint, chapter)


def distribution(requirement: str) -> str:
    """The normalised name in a requirement: ``Py_YAML[x]>=6`` is ``py-yaml``."""
    name = re.split(r"[\s\[<>=!~;@]", requirement.strip(), maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def stage_files(chapter: Chapter) -> list[Path]:
    """The chapter's own programs: main.py and what lies beside it."""
    return sorted(chapter.dir.glob("*.py"))


def _resolve(
    lint: Lint, chapter: Chapter, seen: set[tuple[Path, int, str]]
) -> None:
    """Imports at one chapter; `seen` holds what an earlier chapter reported."""
    modules = lint.modules[chapter.number]
    package = [(source, path) for path, source in modules.tree.items()]
    outside = [
        (path, None) for path in [*stage_files(chapter), *lint.tests(chapter)]
    ]
    for source, inner in [*package, *outside]:
        facts = lint.sources.facts(source)
        if facts.error is not None:
            line, message = facts.error
            lint.report(source, line, chapter, f"does not parse: {message}")
        for item in facts.imports:
            for name, message in _unresolved(lint, modules, item, inner):
                if (source, item.line, name) not in seen:
                    seen.add((source, item.line, name))
                    lint.report(source, item.line, chapter, message)


def _unresolved(
    lint: Lint, modules: Modules, item: Import, inner: str | None
) -> list[tuple[str, str]]:
    """(name, message) of each name that the import would not find."""
    module = modules.absolute(item, inner)
    if module is None:
        if inner is None:  # relative imports of tests are pytest's business
            return []
        name = "." * item.level + item.module
        return [(name, f"import leads out of the package: {name}")]
    if not modules.inside(module):
        return []
    n = lint.modules.index(modules)
    if modules.find(module) is None:
        later = _later(lint, module)
        message = f"{module} is not in the package at ch{n:02d}{later}"
        return [(module, message)]
    problems = []
    for name in item.names:
        if not modules.defines(module, name):
            later = _later(lint, f"{module}.{name}")
            message = f"{module} has no {name} at ch{n:02d}{later}"
            problems.append((name, message))
    return problems


def _later(lint: Lint, module: str) -> str:
    """When the module, or the name at the end of it, does come."""
    parent, _, name = module.rpartition(".")
    for n, modules in enumerate(lint.modules):
        found = modules.find(module) is not None
        if found or (modules.find(parent) and modules.defines(parent, name)):
            return f" (comes in ch{n:02d})"
    return ""


def _third_party(lint: Lint, chapter: Chapter, allowed: set[str]) -> None:
    """Package versions of this chapter and its programs; tests may use dev tools."""
    tree = lint.modules[chapter.number].tree
    own = [tree[path] for path in chapter.touched if path in tree]
    programs = stage_files(chapter)
    local = {path.stem for path in programs}
    for source in [*own, *programs]:
        for item in lint.sources.facts(source).imports:
            top = item.module.partition(".")[0]
            if item.level or top in _OURS or top in sys.stdlib_module_names:
                continue
            if source in programs and top in local:
                continue
            name = distribution(top)
            if {name, DISTRIBUTIONS.get(name, name)}.isdisjoint(allowed):
                message = (
                    f"imports {top}, which no deps up to {chapter.id} allow"
                )
                lint.report(source, item.line, chapter, message)


def _reach(lint: Lint, chapter: Chapter) -> None:
    """Follow imports from main and the tests; report added files never met."""
    modules = lint.modules[chapter.number]
    programs = stage_files(chapter)
    todo: list[tuple[Path, str | None]] = [
        (path, None) for path in [*programs, *lint.tests(chapter)]
    ]
    seen: set[Path] = set()
    reached: set[str] = set()
    while todo:
        source, inner = todo.pop()
        if source in seen:
            continue
        seen.add(source)
        facts = lint.sources.facts(source)
        spelled = [_spelled(text) for text in facts.strings]
        for item in [*facts.imports, *spelled]:
            new = set(modules.reached(item, inner))
            reached |= new
            todo += [(modules.tree[path], path) for path in new]
            todo += [(path, None) for path in _helpers(lint, item)]
    texts = [lint.sources.text(path) for path in seen]
    for path in [*chapter.add, *chapter.early]:
        if path in reached or path not in modules.tree:
            continue
        if not path.endswith(".py") and any(
            Path(path).name in t for t in texts
        ):
            continue  # loaded by its file name, for example a CUDA source
        message = f"neither main.py nor a test of {chapter.id} reaches {path}"
        lint.report_key(chapter, path, message)


def _spelled(text: str) -> Import:
    """A string that spells a module: an import made at run time or ``-m``."""
    name = text.lstrip(".")
    dots = len(text) - len(name)
    names = ("__main__",) if text == PACKAGE else ()
    return Import(0, name, dots, names)


def _helpers(lint: Lint, item: Import) -> list[Path]:
    """Files of tests/ and tools/ that an import names."""
    if item.level or item.module.partition(".")[0] not in {"tests", "tools"}:
        return []
    stem = lint.book.root / item.module.replace(".", "/")
    stems = [stem, *(stem / name for name in item.names)]
    paths = [
        p for s in stems for p in (s.with_suffix(".py"), s / "__init__.py")
    ]
    return [path for path in paths if path.is_file()]
