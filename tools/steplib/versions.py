"""Moving texts between the versions of a file: freeze before, backport after."""

from __future__ import annotations

import re
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.steplib.book import Book, Chapter, ManifestError

_HEADER = re.compile(r"^\[files\][^\n]*\n?", re.MULTILINE)
_NEXT_TABLE = re.compile(r"^\[", re.MULTILINE)
_CHANGE = re.compile(r"^change\s*=\s*\[(.*?)\]", re.MULTILINE | re.DOTALL)


def freeze(book: Book, path: str, n: int) -> tuple[Path, Path]:
    """Prepare chapter `n` to edit `path`; return the copy made and n's manifest.

    The text in force at ``n - 1`` is kept as its owner's frozen copy. If a later
    chapter holds a version already, `n` gets its own copy of that text instead.

    Raises:
        ManifestError: `n` holds a version already, nothing is there to freeze, or
            the copy exists.
    """
    chapter, owners = book.chapter(n), book.owners(path)
    if chapter in owners:
        raise ManifestError(
            f"{chapter.id} holds its own version of {path} already"
        )
    owner = book.owner(path, n)
    if owner is None:
        first = owners[0].id if owners else "no chapter"
        raise ManifestError(
            f"{path} is not there before {chapter.id}: {first} adds it"
        )
    text = book.text(path, n)
    copy = (owner if owner is owners[-1] else chapter).frozen(path)
    if copy.exists():
        raise ManifestError(
            f"{copy} exists already: remove it if it is a leftover"
        )
    manifest = chapter.dir / "stage.toml"
    edited = add_change(manifest.read_text(encoding="utf-8"), path)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(text, encoding="utf-8")
    manifest.write_text(edited, encoding="utf-8")
    return copy, manifest


def add_change(text: str, path: str) -> str:
    """Add `path` to ``[files] change`` of a manifest and leave the rest alone.

    Raises:
        ManifestError: the text is laid out in a way that this cannot edit.
    """
    header = _HEADER.search(text)
    if header is None:
        edited = f'{text.rstrip()}\n[files]\nchange   = ["{path}"]\n'
    else:
        following = _NEXT_TABLE.search(text, header.end())
        end = following.start() if following else len(text)
        section = _edit_section(text[header.end() : end], path)
        head = text[: header.end()]
        head += "" if head.endswith("\n") else "\n"
        edited = head + section + text[end:]
    wanted = tomllib.loads(text)
    files = wanted.setdefault("files", {})
    files["change"] = [*files.get("change", []), path]
    try:
        same = tomllib.loads(edited) == wanted
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise ManifestError(
            f'cannot edit the manifest: add "{path}" to change by hand'
        )
    return edited


def _edit_section(section: str, path: str) -> str:
    match = _CHANGE.search(section)
    if match is None:
        lines = section.splitlines(keepends=True)
        after = _end_of_add(lines)
        return "".join(
            [*lines[:after], f'change   = ["{path}"]\n', *lines[after:]]
        )
    items = match[1]
    if "\n" in items:
        body = items.rstrip()
        comma = "" if body.endswith((",", "[")) or not body.strip() else ","
        new = f'{body}{comma}\n    "{path}",\n'
    else:
        body = items.strip().rstrip(",")
        new = f'{body}, "{path}"' if body else f'"{path}"'
    return section[: match.start(1)] + new + section[match.end(1) :]


def _end_of_add(lines: list[str]) -> int:
    """Index behind the ``add`` list, which may span lines; 0 without one."""
    starts = [i for i, line in enumerate(lines) if re.match(r"add\s*=", line)]
    if not starts:
        return 0
    ends = (i for i in range(starts[0], len(lines)) if "]" in lines[i])
    return next(ends, starts[0]) + 1


@dataclass(frozen=True)
class Merge:
    """A fix merged into an older version; `conflicts` counts conflicting hunks."""

    target: Path
    source: Path
    chapter: Chapter
    text: str
    conflicts: int

    @property
    def hunks(self) -> list[str]:
        """The conflicting parts, markers included."""
        return re.findall(
            r"^<<<<<<< .*?^>>>>>>> [^\n]*", self.text, re.M | re.S
        )


def backport(book: Book, n: int, path: str, base: str = "HEAD") -> Merge:
    """Merge what changed since revision `base` in a newer version of `path` into the
    older version that chapter `n` sees. Nothing is written.

    The nearest newer version with a change is taken, so that a fix walks back
    version by version.

    Raises:
        ManifestError: `n` sees the newest version, or no newer version changed.
    """
    owner, owners = book.owner(path, n), book.owners(path)
    if owner is None:
        raise ManifestError(f"{path} is not there yet at {book.chapter(n).id}")
    newer = owners[owners.index(owner) + 1 :]
    if not newer:
        raise ManifestError(
            f"{book.chapter(n).id} sees minisgl/{path} itself: no older version"
        )
    target = book.source(path, owner.number)
    for chapter in newer:
        source = book.source(path, chapter.number)
        if target is None or source is None:
            continue
        before = _at_revision(book.root, source, base)
        if before is not None and before != source.read_bytes():
            return _merge(target, source, before, owner, base)
    raise ManifestError(
        f"no newer version of {path} differs from {base}: fix it first"
    )


def _at_revision(root: Path, path: Path, revision: str) -> bytes | None:
    name = f"{revision}:./{path.relative_to(root).as_posix()}"
    done = subprocess.run(["git", "show", name], cwd=root, capture_output=True)
    return done.stdout if done.returncode == 0 else None


def _merge(
    target: Path, source: Path, before: bytes, owner: Chapter, base: str
) -> Merge:
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "base"
        old.write_bytes(before)
        labels = [x for name in (owner.name, base, "fix") for x in ("-L", name)]
        command = ["git", "merge-file", "-p", *labels]
        files = [str(target), str(old), str(source)]
        done = subprocess.run([*command, *files], capture_output=True)
    if done.returncode > 127:  # 1 to 127 count conflicts
        raise ManifestError(f"git merge-file: {done.stderr.decode().strip()}")
    text = done.stdout.decode("utf-8")
    return Merge(target, source, owner, text, done.returncode)
