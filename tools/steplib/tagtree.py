"""The trees and commits of the tags: ``chNN`` to start from, ``chNN-done`` finished.

Everything comes from HEAD's tree, never from the working tree, so the same commit
gives the same hashes in every clone.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tools.steplib import exercises
from tools.steplib.book import PACKAGE, Book, Chapter
from tools.steplib.exercises import STARTER, Exercise
from tools.steplib.gitrepo import EMAIL, Entry, Repo
from tools.steplib.pages import TAG_NOTE
from tools.steplib.stubs import STAGE, parse_target, stub_source

TAG = re.compile(r"ch\d\d(-done)?")
NOTE = """\
# A tag of the book

`tools/steps.py tag` made this tree: the chapters up to this one, without the
solutions of exercises. On a tag without `-done` the functions that you write in this
chapter raise `NotImplementedError`. To change the book itself, check out main.
"""
# The chapter of a page, a test, a picture or a stage folder is in its path.
_CHAPTER = re.compile(r"(?:stages|tests|docs)/(?:.*?[/_-])?ch(\d\d)[-_./]")
_MANIFEST = re.compile(r"stages/[^/]+/(?:stage|exercises/[^/]+/exercise)\.toml")
# What tells how an exercise is solved; its starter stands in for the overlay.
_SOLUTION = re.compile(
    r"(stages/[^/]+/exercises/[^/]+)/(?:solution/(.+)|mutants\.toml)"
)


class TagError(ValueError):
    """The sources at HEAD do not give tags."""


@dataclass(frozen=True)
class Tag:
    """A tag as it ought to be."""

    name: str
    commit: str


class TagTrees:
    """Trees of every chapter, out of the sources at HEAD.

    Raises:
        ManifestError: a manifest at HEAD is wrong.
        TagError: a file that a manifest names is not in HEAD, or the other way.
    """

    def __init__(self, repo: Repo, scratch: Path) -> None:
        self.repo = repo
        self.head = repo.files()
        for path, entry in self.head.items():
            if _MANIFEST.fullmatch(path):
                (scratch / path).parent.mkdir(parents=True, exist_ok=True)
                (scratch / path).write_bytes(repo.read(entry.blob))
        self.book = Book.load(scratch)
        self.exercises = exercises.load(self.book)
        self._note = Entry("100644", repo.store(NOTE.encode()))
        owned = {f"{PACKAGE}/{path}" for path in self.book.paths}
        for path in self.head:
            if path.startswith(f"{PACKAGE}/") and path not in owned:
                raise TagError(f"{path}: in HEAD, but no manifest names it")
        self._since = {
            p: n for p in self.head if (n := self._first(p)) is not None
        }
        self._starters = [self._starter(e) for e in self.exercises]

    def _first(self, path: str) -> int | None:
        """The chapter with which a file outside the package appears, None: always."""
        listed = [c.number for c in self.book.chapters if path in c.tests]
        if listed:
            return min(listed)
        match = _CHAPTER.match(path)
        return int(match[1]) if match else None

    def _starter(self, exercise: Exercise) -> dict[str, Entry]:
        """The files of an exercise's starter, by their path on the tag."""
        found: dict[str, Entry] = {}
        written = exercise.written()
        for path, entry in self.head.items():
            match = _SOLUTION.fullmatch(path)
            if match is None or match[1] != exercise.place or not match[2]:
                continue
            if match[2] in written:
                entry = self._stubbed(entry, written.pop(match[2]), exercise.id)
            found[f"{exercise.place}/{STARTER}/{match[2]}"] = entry
        if written:
            raise TagError(
                f"{exercise.id}: {min(written)} is not in its solution"
            )
        return found

    def _stubbed(self, entry: Entry, names: list[str], who: str) -> Entry:
        """The same file with these functions emptied."""
        text = self.repo.read(entry.blob).decode()
        try:
            stubbed = stub_source(text, names)
        except ValueError as error:
            raise TagError(f"{who}: {error}") from None
        return Entry(entry.mode, self.repo.store(stubbed.encode()))

    def done(self, n: int) -> dict[str, Entry]:
        """The tree of ``chNN-done``."""
        files = {TAG_NOTE: self._note}
        pairs = zip(self.exercises, self._starters, strict=True)
        for exercise, starter in pairs:
            files |= starter if exercise.chapter.number <= n else {}
        for path, entry in self.head.items():
            later = self._since.get(path, 0) > n
            if (
                path.startswith(f"{PACKAGE}/")
                or later
                or _SOLUTION.fullmatch(path)
            ):
                continue
            if not self._is_current(path, n):
                files[path] = entry
        for path, source in self.book.tree(n).items():
            name = source.relative_to(self.book.root).as_posix()
            if name not in self.head:
                raise TagError(
                    f"{name}: a manifest names it, but HEAD lacks it"
                )
            files[f"{PACKAGE}/{path}"] = self.head[name]
        return files

    def _is_current(self, path: str, n: int) -> bool:
        """Whether `path` is a frozen copy whose text is still in force at `n`."""
        match = re.fullmatch(
            rf"stages/(ch\d\d)[^/]*/files/{PACKAGE}/(.+)", path
        )
        if match is None:
            return False
        owner = self.book.owner(match[2], n)
        return owner is not None and owner.id == match[1]

    def start(self, n: int) -> dict[str, Entry]:
        """The tree of ``chNN``: the finished one, what the reader writes stubbed."""
        files = self.done(n)
        chapter = self.book.chapter(n)
        for path, names in _stubs(chapter).items():
            if path not in files:
                raise TagError(
                    f"{chapter.id}: [write] names {path}, not in its tree"
                )
            who = f"{chapter.id}: [write] {path}"
            files[path] = self._stubbed(files[path], names, who)
        return files


def _stubs(chapter: Chapter) -> dict[str, list[str]]:
    """Path in the repository -> names to stub there."""
    found: dict[str, list[str]] = defaultdict(list)
    for target in chapter.stubs:
        path, name = parse_target(target)
        if path.startswith(STAGE):
            path = f"stages/{chapter.name}/{path.removeprefix(STAGE)}"
        elif path in chapter.touched:
            path = f"{PACKAGE}/{path}"
        else:
            raise TagError(
                f"{chapter.id}: [write] {path}: not a file of this chapter"
            )
        found[path].append(name)
    return found


def build(repo: Repo) -> list[Tag]:
    """Write the chain of commits, oldest first; no tag is touched."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        trees = TagTrees(repo, scratch)
        found: list[Tag] = []
        for chapter in trees.book.chapters:
            n = chapter.number
            title = re.sub(
                "^The ", "the ", chapter.title.get("en", chapter.slug)
            )
            for name, files, state in (
                (chapter.id, trees.start(n), "start"),
                (f"{chapter.id}-done", trees.done(n), "done"),
            ):
                tree = repo.write_tree(files, scratch / "index")
                parent = found[-1].commit if found else None
                message = f"{chapter.id}: {title} ({state})"
                commit = repo.commit(tree, parent, message, len(found))
                found.append(Tag(name, commit))
        return found


def changes(repo: Repo, wanted: list[Tag]) -> dict[str, str | None]:
    """What must be set (a commit) or removed (None) for the tags to be right."""
    have = repo.tags()
    new: dict[str, str | None] = {
        tag.name: tag.commit
        for tag in wanted
        if have.get(tag.name, ("", ""))[0] != tag.commit
    }
    names = {tag.name for tag in wanted}
    for name, (_, mail) in have.items():
        if TAG.fullmatch(name) and mail == EMAIL and name not in names:
            new[name] = None
    return new
