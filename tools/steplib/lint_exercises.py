"""Rules about exercises: complete, alike in both languages, true to their chapter."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.steplib import exercises
from tools.steplib.book import PACKAGE, Chapter, ManifestError
from tools.steplib.exercises import LANGUAGES, Exercise
from tools.steplib.facts import Modules
from tools.steplib.lint import Lint
from tools.steplib.lint_imports import DISTRIBUTIONS, distribution
from tools.steplib.lint_texts import code_lines
from tools.steplib.pages import is_tag_tree

_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_OURS = {PACKAGE, "tests", "tools", "stages", "__future__"}
LEAST_HINTS = 2


def check(lint: Lint) -> None:
    """Apply the rules of this module."""
    allowed: set[str] = set()
    seen: dict[str, Path] = {}
    for chapter in lint.book.chapters:
        allowed |= {distribution(dep) for dep in chapter.deps}
        for folder in exercises.folders(chapter):
            try:
                exercise = exercises.read_exercise(folder, chapter)
            except ManifestError as error:
                path = folder / exercises.MANIFEST
                message = str(error).removeprefix(f"{path}: ")
                lint.report(path, 1, chapter, message)
                continue
            _Rules(lint, exercise).check(allowed, is_tag_tree(lint.book.root))
            if exercise.id in seen:
                message = f"{exercise.id} is also the id of {seen[exercise.id]}"
                lint.report(folder / exercises.MANIFEST, 1, chapter, message)
            seen[exercise.id] = Path(exercise.place)


class _Rules:
    def __init__(self, lint: Lint, exercise: Exercise) -> None:
        self.lint, self.exercise = lint, exercise
        self.chapter: Chapter = exercise.chapter

    def check(self, allowed: set[str], on_tag: bool) -> None:
        """Apply every rule; `allowed` are the distributions of the chapter."""
        kept, other = exercises.SOLUTION, exercises.STARTER
        if on_tag:
            kept, other = other, kept
        if (self.exercise.dir / other).exists():
            self.say(f"{other}/ does not belong here: `tag` makes starters")
        files = _files(self.exercise.dir / kept)
        if not files:
            self.say(f"{kept}/ is missing")
        if not self.lint.sources.text(self.exercise.dir / exercises.TEST):
            self.say(f"{exercises.TEST} is missing")
        self._texts()
        self._stubs(files)
        self._overlay(files)
        self._imports(files, allowed)

    def say(self, message: str, name: str = exercises.MANIFEST) -> None:
        path = self.exercise.dir / name
        self.lint.report(path, 1, self.chapter, message)

    def _texts(self) -> None:
        """Statement and hints: there, with the right title, alike in their code."""
        for kind in ("statement", "hints"):
            names = [f"{kind}.{language}.md" for language in LANGUAGES]
            texts = [
                self.lint.sources.text(self.exercise.dir / n) for n in names
            ]
            for name, text in zip(names, texts, strict=True):
                if not text.strip():
                    self.say(f"{name} is missing")
            if not all(text.strip() for text in texts):
                continue
            for language, name, text in zip(
                LANGUAGES, names, texts, strict=True
            ):
                self._language(language, name, text)
            english, chinese = ([*code_lines(text)] for text in texts)
            if [line for _, line in english] != [line for _, line in chinese]:
                self.say(f"its code is not that of {names[0]}", names[1])
            if kind == "hints":
                self._hints(names)

    def _language(self, language: str, name: str, text: str) -> None:
        if (language == "zh") != bool(_CHINESE.search(text)):
            self.say(f"is not in the language of its name ({language})", name)
        title = f"# {self.exercise.title[language]}"
        if name.startswith("statement") and text.split("\n", 1)[0] != title:
            self.say(f"must begin with {title!r}", name)

    def _hints(self, names: list[str]) -> None:
        counts = [len(self.exercise.hints(language)) for language in LANGUAGES]
        if min(counts) < LEAST_HINTS:
            self.say(
                f"at least {LEAST_HINTS} hints, each below a `## `", names[0]
            )
        if counts[0] != counts[1]:
            self.say(f"{counts[1]} hints, {names[0]} has {counts[0]}", names[1])

    def _stubs(self, files: dict[str, Path]) -> None:
        """Each stub is a function of the overlay, and the statements name it."""
        for path, names in self.exercise.written().items():
            for name in names:
                try:
                    texts = {
                        p: self.lint.sources.text(f) for p, f in files.items()
                    }
                    exercises.make_starter(texts, {path: [name]})
                except (ValueError, SyntaxError) as error:
                    self.say(f"stub {name}: {error}")
                for language in LANGUAGES:
                    file = f"statement.{language}.md"
                    text = self.lint.sources.text(self.exercise.dir / file)
                    if text and name.rpartition(".")[2] not in text:
                        self.say(f"does not say that one writes {name}", file)

    def _overlay(self, files: dict[str, Path]) -> None:
        """Files of the chapter's tree, and none that is the same as there."""
        number, stage = self.chapter.number, f"stages/{self.chapter.name}/"
        for path, file in files.items():
            if path.startswith(f"{PACKAGE}/"):
                inner = path.removeprefix(f"{PACKAGE}/")
                source = self.lint.book.source(inner, number)
            elif path.startswith(stage):
                source = self.lint.book.root / path
            else:
                self.lint.report(
                    file,
                    1,
                    self.chapter,
                    f"lies neither in {PACKAGE}/ nor in {stage}",
                )
                continue
            same = source and self.lint.sources.text(source)
            if same and same == self.lint.sources.text(file):
                self.lint.report(
                    file,
                    1,
                    self.chapter,
                    f"is {path} of {self.chapter.id} unchanged",
                )

    def _imports(self, files: dict[str, Path], allowed: set[str]) -> None:
        inner = {
            path.removeprefix(f"{PACKAGE}/"): file
            for path, file in files.items()
            if path.startswith(f"{PACKAGE}/")
        }
        tree = self.lint.book.tree(self.chapter.number) | inner
        modules = Modules(PACKAGE, tree, self.lint.sources)
        places: list[tuple[Path, str | None]] = [
            (f, p) for p, f in inner.items()
        ]
        places.append((self.exercise.dir / exercises.TEST, None))
        for file, path in places:
            facts = self.lint.sources.facts(file)
            if facts.error:
                line, message = facts.error
                self.lint.report(
                    file, line, self.chapter, f"does not parse: {message}"
                )
            for item in facts.imports:
                module = modules.absolute(item, path) or ""
                top = item.module.partition(".")[0]
                if modules.inside(module):
                    for text in _unresolved(modules, module, item.names):
                        message = f"{text} at {self.chapter.id}"
                        self.lint.report(file, item.line, self.chapter, message)
                elif path and not item.level and not _known(top, allowed):
                    message = f"imports {top}, which no deps up to here allow"
                    self.lint.report(file, item.line, self.chapter, message)


def _unresolved(
    modules: Modules, module: str, names: tuple[str, ...]
) -> Iterator[str]:
    if modules.find(module) is None:
        yield f"{module} is not in the package"
        return
    for name in names:
        if not modules.defines(module, name):
            yield f"{module} has no {name}"


def _known(top: str, allowed: set[str]) -> bool:
    name = distribution(top)
    ours = top in _OURS or top in sys.stdlib_module_names
    return ours or not {name, DISTRIBUTIONS.get(name, name)}.isdisjoint(allowed)


def _files(folder: Path) -> dict[str, Path]:
    """Path from the repository's root -> file of an overlay."""
    found = sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        p.relative_to(folder).as_posix(): p
        for p in found
        if "__pycache__" not in p.parts
    }
