"""The exercises of the chapters: read from disk, starters made from solutions.

An exercise is a folder ``stages/chNN-slug/exercises/SLUG``: exercise.toml, a
statement and hints in both languages, a test, and an overlay of the files that
its solution adds to the chapter's tree or changes in it. Tags hold the generated
starter in the place of the overlay.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tools.steplib.book import PACKAGE, Book, Chapter, ManifestError
from tools.steplib.stubs import STAGE, parse_target, stub_source

FOLDER = "exercises"
TEST = "test_exercise.py"
MANIFEST = "exercise.toml"
SOLUTION, STARTER, MUTANTS = "solution", "starter", "mutants.toml"
LANGUAGES = ("en", "zh")
ID = re.compile(r"ex(\d\d)-([1-9])")
_KEYS = {"id", "title", "chapter", "difficulty", "minutes", "stubs"}
_HINT = re.compile(r"^## +", re.MULTILINE)


@dataclass(frozen=True)
class Exercise:
    """One exercise as its ``exercise.toml`` describes it.

    difficulty: 1 to 3.
    stubs: what the reader writes, as targets of `stubs.parse_target`.
    """

    id: str
    title: dict[str, str]
    chapter: Chapter
    dir: Path
    difficulty: int
    minutes: int
    stubs: list[str]

    @property
    def place(self) -> str:
        """The folder, from the repository's root."""
        return f"stages/{self.chapter.name}/{FOLDER}/{self.dir.name}"

    @property
    def test(self) -> str:
        """The test file, from the repository's root."""
        return f"{self.place}/{TEST}"

    @property
    def stars(self) -> str:
        return "★" * self.difficulty + "☆" * (3 - self.difficulty)

    @property
    def mutants(self) -> Path:
        return self.dir / MUTANTS

    def statement(self, language: str) -> Path:
        return self.dir / f"statement.{language}.md"

    def hints_file(self, language: str) -> Path:
        return self.dir / f"hints.{language}.md"

    def hints(self, language: str) -> list[str]:
        """The hints, weakest first: each a heading and what stands below it."""
        text = self.hints_file(language).read_text(encoding="utf-8")
        return [part.strip() for part in _HINT.split(text)[1:]]

    def written(self) -> dict[str, list[str]]:
        """File, from the repository's root -> functions that the reader writes."""
        return written_files(self.chapter.name, self.stubs)

    def solution(self) -> dict[str, str]:
        """File, from the repository's root -> its text; empty on a tag."""
        return _texts(self.dir / SOLUTION)

    def starter(self) -> dict[str, str]:
        """The solution without what the reader writes.

        Raises:
            ValueError: a stub is no function of the solution.
        """
        solution = self.solution()
        if not solution:
            return _texts(self.dir / STARTER)
        return make_starter(solution, self.written())


def written_files(stage: str, targets: list[str]) -> dict[str, list[str]]:
    """Targets of the stage with that folder name as `Exercise.written` has them."""
    found: dict[str, list[str]] = defaultdict(list)
    for target in targets:
        path, name = parse_target(target)
        if path.startswith(STAGE):
            file = f"stages/{stage}/{path.removeprefix(STAGE)}"
        else:
            file = f"{PACKAGE}/{path}"
        found[file].append(name)
    return dict(found)


def make_starter(
    solution: dict[str, str], written: dict[str, list[str]]
) -> dict[str, str]:
    """A solution's files, the functions `written` there emptied.

    Raises:
        ValueError: a function, or its file, is not in the solution.
    """
    if lost := sorted(set(written) - set(solution)):
        raise ValueError(f"{lost[0]}: not in the solution")
    return {
        path: stub_source(text, written[path]) if path in written else text
        for path, text in solution.items()
    }


def _texts(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8")
        for p in files
        if "__pycache__" not in p.parts
    }


def folders(chapter: Chapter) -> list[Path]:
    """Where the exercises of a chapter lie."""
    return sorted(p for p in (chapter.dir / FOLDER).glob("*") if p.is_dir())


def read_exercise(folder: Path, chapter: Chapter) -> Exercise:
    """Parse ``folder/exercise.toml``.

    Raises:
        ManifestError: it is missing, or a key is missing, unknown or wrong.
    """
    path = folder / MANIFEST
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"{path}: missing") from None
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path}: {error}") from None
    if wrong := sorted(_KEYS ^ set(data)):
        word = "missing" if wrong[0] in _KEYS else "unknown"
        raise ManifestError(f"{path}: key {wrong[0]!r} is {word}")
    if problem := _problem(data, chapter):
        raise ManifestError(f"{path}: {problem}")
    del data["chapter"]
    return Exercise(chapter=chapter, dir=folder, **data)


def _problem(data: dict[str, object], chapter: Chapter) -> str:
    """What is wrong with the values of a manifest; empty if nothing is."""
    match = ID.fullmatch(str(data["id"]))
    if data["chapter"] != chapter.number:
        return f"chapter must be {chapter.number}, the folder's"
    if match is None or int(match[1]) != chapter.number:
        return f'id must read "ex{chapter.number:02d}-1" or another number'
    if data["difficulty"] not in (1, 2, 3):
        return "difficulty must be 1, 2 or 3"
    minutes = data["minutes"]
    if not isinstance(minutes, int) or not 10 <= minutes <= 90:
        return "minutes must be from 10 to 90"
    title = data["title"]
    if not isinstance(title, dict) or set(title) != set(LANGUAGES):
        return "title must have en and zh"
    return "" if data["stubs"] else "stubs must name what the reader writes"


def of_chapter(chapter: Chapter) -> list[Exercise]:
    """The exercises of one chapter, by id.

    Raises:
        ManifestError: a manifest is wrong.
    """
    found = [read_exercise(folder, chapter) for folder in folders(chapter)]
    return sorted(found, key=lambda exercise: exercise.id)


def load(book: Book) -> list[Exercise]:
    """Every exercise of the book, by id.

    Raises:
        ManifestError: a manifest is wrong, or two have the same id.
    """
    found: dict[str, Exercise] = {}
    for chapter in book.chapters:
        for exercise in of_chapter(chapter):
            if exercise.id in found:
                other = found[exercise.id].dir
                raise ManifestError(
                    f"{exercise.dir}: {other.name} is {exercise.id}"
                )
            found[exercise.id] = exercise
    return [found[key] for key in sorted(found)]


def find(known: list[Exercise], which: str) -> Exercise:
    """The exercise with this id (``ex07-1``, ``7-1``) or folder name.

    Raises:
        ManifestError: there is none; the message offers some.
    """
    match = re.fullmatch(r"(?:ex)?0?(\d{1,2})-(\d)", which)
    name = f"ex{int(match[1]):02d}-{match[2]}" if match else which
    for exercise in known:
        if name in (exercise.id, exercise.dir.name):
            return exercise
    names = [e.id for e in known] + [e.dir.name for e in known]
    near = get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise ManifestError(
        f"no exercise {which!r}: {hint}`steps.py exercises` lists all"
    )
