"""Where a reader's commands find chapters and exercises, on whatever checkout.

On main that is the checkout itself. A tag's tree ends at its chapter: there, and in
a worktree of `start`, the newest tag is read, so that what comes next is known too.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tools.steplib import exercises
from tools.steplib.book import Book, Chapter, ManifestError
from tools.steplib.exercises import Exercise
from tools.steplib.gitrepo import GitError, Repo
from tools.steplib.pages import is_tag_tree
from tools.steplib.venv import main_checkout

STARTED = (
    "stages/STARTED"  # lies in worktrees of `start` only: what was started
)
_BRANCHES = ("main", "origin/main", "origin/HEAD")


@dataclass(frozen=True)
class Item:
    """A chapter to write or an exercise: what `start` and `grade` are about."""

    id: str
    chapter: Chapter
    exercise: Exercise | None = None

    def title(self, language: str) -> str:
        return (self.exercise or self.chapter).title[language]

    @property
    def tag(self) -> str:
        """The tag from which it is started."""
        return f"{self.chapter.id}-done" if self.exercise else self.chapter.id

    def written(self) -> dict[str, list[str]]:
        """File, from the repository's root -> functions that the reader writes."""
        if self.exercise:
            return self.exercise.written()
        return exercises.written_files(self.chapter.name, self.chapter.stubs)

    def tests(self) -> list[str]:
        """Test files beside the chapter's own, from the repository's root."""
        return [self.exercise.test] if self.exercise else []


class Shelf:
    """Every chapter and exercise that this clone has.

    Raises:
        ManifestError: a manifest is wrong, or a tag's tree is without git.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.main = main_checkout(root)
        self.on_tag = is_tag_tree(root)
        self.book = Book.load(self._newest() if self.on_tag else root)
        self.exercises = exercises.load(self.book)

    def _newest(self) -> Path:
        """The stages folder of the newest tag, extracted once below .cache."""
        try:
            repo = Repo(self.root)
            names = sorted(
                n for n in repo.tags() if re.match(r"ch\d\d-done$", n)
            )
            if not names:
                return self.root
            commit = repo.line("rev-parse", f"refs/tags/{names[-1]}^{{commit}}")
            dest = self.main / ".cache" / "stages" / commit[:16]
            if not dest.is_dir():
                raw = repo.git("archive", "--format=tar", commit, "stages")
                scratch = dest.with_suffix(f".{os.getpid()}")
                with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
                    tar.extractall(scratch, filter="data")
                scratch.replace(dest)
            return dest
        except GitError as error:
            raise ManifestError(f"git: {error}") from None

    def items(self) -> list[Item]:
        """In the order of reading: a chapter, its exercises, the next one."""
        found = []
        for chapter in self.book.chapters:
            if chapter.stubs:
                found.append(Item(chapter.id, chapter))
            mine = (e for e in self.exercises if e.chapter is chapter)
            found += [Item(e.id, chapter, e) for e in mine]
        return found

    def find(self, which: str | None) -> Item:
        """What a reader means; None is what the worktree was started for.

        Raises:
            ManifestError: no such chapter or exercise, or nothing was named.
        """
        which = which or started(self.root)
        if which is None:
            raise ManifestError(
                "name a chapter or an exercise: `steps.py exercises` lists them"
            )
        if re.fullmatch(r"(ch)?\d+(-[a-z][a-z0-9-]*)?", which):
            chapter = self.book.chapter(which)
            return Item(chapter.id, chapter)
        exercise = exercises.find(self.exercises, which)
        return Item(exercise.id, exercise.chapter, exercise)

    def solution(self, exercise: Exercise) -> dict[str, str]:
        """File -> text of the solution, which no tag holds: from the main branch.

        Raises:
            ManifestError: this clone has no such branch.
        """
        if found := exercise.solution():
            return found
        repo, prefix = (
            Repo(self.root),
            f"{exercise.place}/{exercises.SOLUTION}/",
        )
        for branch in _BRANCHES:
            try:
                files = repo.files(branch)
            except GitError:
                continue
            texts = {
                path.removeprefix(prefix): repo.read(entry.blob).decode()
                for path, entry in files.items()
                if path.startswith(prefix)
            }
            if texts:
                return texts
        raise ManifestError(
            f"the solution of {exercise.id} is on the main branch, which is not "
            "in this clone: git fetch origin main:main"
        )


def started(root: Path) -> str | None:
    """What the worktree `root` was started for; None for any other checkout."""
    path = root / STARTED
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None
