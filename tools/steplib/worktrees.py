"""Worktrees in which a reader writes: made from a tag, found again by a note."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tools.steplib.book import ManifestError
from tools.steplib.exercises import STARTER
from tools.steplib.gitrepo import Entry, GitError, Repo
from tools.steplib.shelf import STARTED, Item, Shelf, started

FOLDER = "practice"


def branch(item: Item) -> str:
    """The branch on which a reader's text of `item` is kept."""
    return f"mine-{item.id}"


def find(shelf: Shelf, item: Item) -> Path | None:
    """The worktree that was started for `item`, if it is still there."""
    if started(shelf.root) == item.id:
        return shelf.root
    for folder in worktrees(shelf.root):
        if started(folder) == item.id:
            return folder
    return None


def worktrees(root: Path) -> list[Path]:
    """Folders of all worktrees of the repository, the main one first."""
    try:
        listing = Repo(root).git("worktree", "list", "--porcelain").decode()
    except GitError:
        return []
    found = re.findall(r"^worktree (.+)$", listing, re.MULTILINE)
    return [Path(folder) for folder in found]


def start(shelf: Shelf, item: Item, dest: Path | None) -> Path:
    """Make the worktree of `item`; `dest` defaults to ``practice/ID``.

    Raises:
        ManifestError: it is started already, something is in the way, or the tag
            is missing or does not know the exercise.
    """
    dest = (dest or shelf.main / FOLDER / item.id).absolute()
    if (there := find(shelf, item)) is not None:
        raise ManifestError(
            f"{item.id} is started already: go on in {there} (to begin anew: "
            f"git worktree remove --force {there}; git branch -D {branch(item)})"
        )
    if dest.exists():
        raise ManifestError(f"{dest} exists: name another folder behind the id")
    repo = Repo(shelf.main)
    try:
        tags = repo.tags()
        if item.tag not in tags:
            raise ManifestError(
                f"there is no tag {item.tag}: run `make setup`, or "
                "`python tools/steps.py tag` on the main branch"
            )
        repo.git("worktree", "prune")
        if repo.line("branch", "--list", branch(item)):
            raise ManifestError(
                f"the branch {branch(item)} is left from an earlier start: "
                f"`git worktree add {dest} {branch(item)}` brings it back, "
                f"`git branch -D {branch(item)}` drops it"
            )
        commit = _commit(repo, item, tags[item.tag][0])
        dest.parent.mkdir(parents=True, exist_ok=True)
        add = ("worktree", "add", "--quiet", "-b", branch(item))
        repo.git(*add, str(dest), commit)
    except GitError as error:
        raise ManifestError(f"git: {error}") from None
    return dest


def _commit(repo: Repo, item: Item, tag: str) -> str:
    """The tag's tree, the starter laid over it, as a commit on top of it."""
    files = repo.files(tag)
    if item.exercise is not None:
        prefix = f"{item.exercise.place}/{STARTER}/"
        laid = {
            path.removeprefix(prefix): entry
            for path, entry in files.items()
            if path.startswith(prefix)
        }
        if not laid:
            raise ManifestError(
                f"the tag {item.tag} does not hold {item.id}: on the main branch "
                "commit it and run `python tools/steps.py tag`"
            )
        files |= laid
    note = repo.store(f"{item.id}\n".encode())
    files[STARTED] = Entry("100644", note)
    with tempfile.TemporaryDirectory() as folder:
        tree = repo.write_tree(files, Path(folder) / "index")
    return repo.commit(tree, tag, f"{item.id}: where you start", 0)


def place_of(shelf: Shelf, item: Item) -> Path:
    """The checkout that holds the reader's text of `item`.

    That is its worktree, or this checkout if it is the chapter's start tag.

    Raises:
        ManifestError: it is not started.
    """
    if (there := find(shelf, item)) is not None:
        return there
    if item.exercise is None and _is_tag_of(shelf, item):
        if _is_done(shelf.root, item):
            raise ManifestError(
                f"this is {item.id}-done, which the book wrote: "
                f"git checkout {item.id}, or python tools/steps.py start {item.id}"
            )
        return shelf.root
    raise ManifestError(
        f"{item.id} is not started: python tools/steps.py start {item.id}"
    )


def _is_tag_of(shelf: Shelf, item: Item) -> bool:
    """Whether this checkout is a tag of the chapter, and no worktree of `start`."""
    if not shelf.on_tag or started(shelf.root) is not None:
        return False
    stages = (shelf.root / "stages").glob("ch[0-9][0-9]-*")
    return max(path.name for path in stages) == item.chapter.name


def is_unsaved(shelf: Shelf, item: Item) -> bool:
    """Whether this checkout is the chapter's tag, and was edited since."""
    edited = ("status", "--porcelain", "--untracked-files=no")
    return _is_tag_of(shelf, item) and bool(Repo(shelf.root).line(*edited))


def _is_done(root: Path, item: Item) -> bool:
    repo = Repo(root)
    try:
        done = repo.line("rev-parse", f"refs/tags/{item.id}-done^{{commit}}")
        return repo.line("rev-parse", "HEAD") == done
    except GitError:
        return False
