"""Git's plumbing, blind to the user's index, working tree and identity."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

NAME = "handwritten-minisgl"
EMAIL = "book@handwritten-minisgl.invalid"
# A hook's environment would point git at its own index and repository.
_PLACES = {
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
}
_START = 1_767_225_600  # 2026-01-01T00:00:00Z


class GitError(RuntimeError):
    """Git refused; the message is its own last line."""


@dataclass(frozen=True)
class Entry:
    """A file of a tree: its mode, as in ``100644``, and its blob's hash."""

    mode: str
    blob: str


@cache
def _objects_of(root: Path) -> str:
    path = Repo(root).line("rev-parse", "--git-path", "objects")
    return str((root / path).resolve())


@dataclass(frozen=True)
class Repo:
    """The repository that holds `root`.

    With `scratch`, new objects go to that folder and the repository is only read.
    """

    root: Path
    scratch: Path | None = None
    _blobs: dict[str, bytes] = field(default_factory=dict)

    def git(self, *args: str, stdin: bytes = b"", **env: str) -> bytes:
        """Run a git command and return what it printed.

        Raises:
            GitError: it failed or git is not installed.
        """
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith("GIT_")
        }
        command = ["git", "-c", "i18n.commitEncoding=UTF-8", *args]
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                input=stdin,
                capture_output=True,
                env=clean | self._objects() | env,
                check=False,
            )
        except FileNotFoundError:
            raise GitError("git is not installed") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise GitError(lines[-1] if lines else f"git {args[0]} failed")
        return done.stdout

    def _objects(self) -> dict[str, str]:
        if self.scratch is None:
            return {}
        return {
            "GIT_OBJECT_DIRECTORY": str(self.scratch),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _objects_of(self.root),
        }

    def line(self, *args: str, stdin: bytes = b"", **env: str) -> str:
        """The same, as text without the final newline."""
        return self.git(*args, stdin=stdin, **env).decode().strip()

    def files(self, commit: str = "HEAD") -> dict[str, Entry]:
        """Every file of a commit's tree by its path."""
        found = {}
        listing = self.git(
            "ls-tree", "-r", "-z", "--full-tree", commit
        ).decode()
        for row in listing.split("\0")[:-1]:
            head, path = row.split("\t", 1)
            mode, _, blob = head.split(" ")
            found[path] = Entry(mode, blob)
        return found

    def read(self, blob: str) -> bytes:
        """The bytes of a blob."""
        if blob not in self._blobs:
            self._blobs[blob] = self.git("cat-file", "blob", blob)
        return self._blobs[blob]

    def store(self, data: bytes) -> str:
        """Write a blob and return its hash."""
        return self.line("hash-object", "-w", "--stdin", stdin=data)

    def write_tree(self, files: dict[str, Entry], index: Path) -> str:
        """Write the tree that holds `files`; `index` is a scratch file's path."""
        index.unlink(missing_ok=True)
        rows = "".join(
            f"{e.mode} {e.blob}\t{p}\0" for p, e in sorted(files.items())
        )
        env = {"GIT_INDEX_FILE": str(index)}
        self.git(
            "update-index", "-z", "--index-info", stdin=rows.encode(), **env
        )
        return self.line("write-tree", GIT_INDEX_FILE=str(index))

    def commit(
        self, tree: str, parent: str | None, message: str, place: int
    ) -> str:
        """Write a commit with the book's fixed identity.

        `place` in the chain gives the date: one minute after the commit before.
        """
        env: dict[str, str] = {}
        for who in ("AUTHOR", "COMMITTER"):
            env[f"GIT_{who}_NAME"] = NAME
            env[f"GIT_{who}_EMAIL"] = EMAIL
            env[f"GIT_{who}_DATE"] = f"{_START + 60 * place} +0000"
        parents = ["-p", parent] if parent else []
        text = f"{message}\n".encode()
        command = ["commit-tree", *parents, tree]
        return self.git(*command, stdin=text, **env).decode().strip()

    def tags(self) -> dict[str, tuple[str, str]]:
        """Tag -> (object's hash, committer's e-mail)."""
        form = "%(refname:short)%09%(objectname)%09%(committeremail:trim)"
        rows = self.git(
            "for-each-ref", f"--format={form}", "refs/tags"
        ).decode()
        return {
            name: (commit, mail)
            for name, commit, mail in (
                row.split("\t") for row in rows.splitlines()
            )
        }

    def set_tags(self, new: dict[str, str | None]) -> None:
        """Point lightweight tags at commits, or delete those given as None."""
        rows = [
            f"update refs/tags/{name} {to}\n"
            if to
            else f"delete refs/tags/{name}\n"
            for name, to in new.items()
        ]
        self.git("update-ref", "--stdin", stdin="".join(rows).encode())
