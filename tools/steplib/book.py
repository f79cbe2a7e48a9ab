"""Chapters, their manifests, and which text a package file has in which chapter.

The rule (reverse overlay): the owner of a path at chapter N is the last chapter
<= N that adds or changes it. When that is also its last owner of all, the text
is ``minisgl/PATH``; otherwise it is ``stages/OWNER/files/minisgl/PATH``.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "minisgl"
_FOLDER = re.compile(r"ch(\d\d)-[a-z0-9-]+$")
_KEYS: dict[str, set[str]] = {
    "": {"title", "part", "needs", "deps", "swaps", "files", "check", "guard",
         "write", "upstream"},
    "files": {"add", "change", "early"},
    "check": {"model", "tests"},
    "guard": {"introduces"},
    "write": {"stubs"},
    "upstream": {"symbols"},
}  # fmt: skip


class ManifestError(ValueError):
    """A manifest or the stages folder says something that cannot be right."""


@dataclass(frozen=True)
class Chapter:
    """One folder of ``stages/`` as its ``stage.toml`` describes it."""

    number: int
    dir: Path
    title: dict[str, str]
    part: int
    needs: str = "cpu"
    deps: list[str] = field(default_factory=list)
    swaps: dict[str, str] = field(default_factory=dict)
    add: list[str] = field(default_factory=list)
    change: list[str] = field(default_factory=list)
    early: dict[str, str] = field(default_factory=dict)
    model: str = "qwen3-tiny"
    tests: list[str] = field(default_factory=list)
    introduces: list[str] = field(default_factory=list)
    stubs: list[str] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Short name, for example ``ch09``."""
        return f"ch{self.number:02d}"

    @property
    def name(self) -> str:
        """Folder name, for example ``ch09-radix-cache``."""
        return self.dir.name

    @property
    def slug(self) -> str:
        """The folder name without its number, for example ``radix-cache``."""
        return self.name[5:]

    @property
    def main(self) -> Path:
        return self.dir / "main.py"

    @property
    def output(self) -> Path:
        return self.dir / "output.txt"

    @property
    def mutants(self) -> Path:
        return self.dir / "mutants.toml"

    @property
    def touched(self) -> list[str]:
        """Package paths this chapter adds (early ones too) or changes."""
        return [*self.add, *self.early, *self.change]

    def frozen(self, path: str) -> Path:
        """Where this chapter's own version of `path` lies once it is superseded."""
        return self.dir / "files" / PACKAGE / path


def read_manifest(folder: Path) -> Chapter:
    """Parse ``folder/stage.toml``.

    Raises:
        ManifestError: missing file, bad TOML, or an unknown or missing key.
    """
    match = _FOLDER.fullmatch(folder.name)
    if match is None:
        raise ManifestError(f"{folder}: a stage folder is named chNN-slug")
    path = folder / "stage.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ManifestError(f"{path}: missing") from None
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path}: {error}") from None
    _reject_unknown(path, data)
    for key in ("title", "part"):
        if key not in data:
            raise ManifestError(f"{path}: key {key!r} is missing")
    flat: dict[str, Any] = {k: v for k, v in data.items() if k in _KEYS[""]}
    for table in ("files", "check", "guard", "write", "upstream"):
        flat.update(flat.pop(table, {}))
    return Chapter(number=int(match[1]), dir=folder, **flat)


def _reject_unknown(path: Path, data: dict[str, Any]) -> None:
    for table, known in _KEYS.items():
        section = data.get(table, {}) if table else data
        if extra := sorted(set(section) - known):
            where = f"[{table}] " if table else ""
            raise ManifestError(
                f"{path}: {where}unknown key {extra[0]!r}; known: {sorted(known)}"
            )


@dataclass(frozen=True)
class Book:
    """All chapters of one checkout, in order, gap-free from ch00."""

    root: Path
    chapters: list[Chapter]

    @classmethod
    def load(cls, root: Path = ROOT) -> Book:
        """Read every manifest under ``root/stages``.

        Raises:
            ManifestError: a manifest is wrong or a chapter number is missing.
        """
        folders = sorted(p for p in (root / "stages").glob("ch*") if p.is_dir())
        chapters = [read_manifest(p) for p in folders]
        for want, chapter in enumerate(chapters):
            if chapter.number != want:
                raise ManifestError(
                    f"stages: expected ch{want:02d} but found {chapter.name}"
                )
        return cls(root, chapters)

    @property
    def last(self) -> int:
        return len(self.chapters) - 1

    def chapter(self, which: int | str) -> Chapter:
        """Find a chapter by number, ``9``, ``ch09`` or folder name.

        Raises:
            ManifestError: there is no such chapter; the message lists the range.
        """
        text = str(which)
        digits = re.fullmatch(r"(?:ch)?0*(\d+)(?:-[a-z0-9-]+)?", text)
        if digits and int(digits[1]) <= self.last:
            return self.chapters[int(digits[1])]
        raise ManifestError(
            f"no chapter {text!r}: this checkout has ch00 to ch{self.last:02d}"
        )

    @cached_property
    def _owners(self) -> dict[str, list[Chapter]]:
        table: dict[str, list[Chapter]] = {}
        for chapter in self.chapters:
            for path in chapter.touched:
                table.setdefault(path, []).append(chapter)
        return table

    @property
    def paths(self) -> list[str]:
        """Every package path any manifest names, sorted."""
        return sorted(self._owners)

    def owners(self, path: str) -> list[Chapter]:
        """Chapters that hold a version of `path`, oldest first."""
        return self._owners.get(path, [])

    def owner(self, path: str, n: int) -> Chapter | None:
        """The chapter whose version of `path` is in the package at chapter `n`."""
        older = [c for c in self.owners(path) if c.number <= n]
        return older[-1] if older else None

    def source(self, path: str, n: int) -> Path | None:
        """The file that holds the text of `path` at chapter `n`, or None."""
        owner = self.owner(path, n)
        if owner is None:
            return None
        if owner is self.owners(path)[-1]:
            return self.root / PACKAGE / path
        return owner.frozen(path)

    def tree(self, n: int) -> dict[str, Path]:
        """Package path -> file holding its text, for the package at chapter `n`."""
        pairs = ((path, self.source(path, n)) for path in self.paths)
        return {path: source for path, source in pairs if source is not None}

    def text(self, path: str, n: int) -> str:
        """The text of `path` at chapter `n`; empty when it is not there yet.

        Raises:
            ManifestError: the manifests name it but the file is missing.
        """
        source = self.source(path, n)
        if source is None:
            return ""
        try:
            return source.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ManifestError(
                f"{source}: missing; `steps.py lint` says what is wrong"
            ) from None

    def lookup(self, text: str) -> str:
        """The package path a user means: ``core.py``, ``minisgl/core.py`` or a file.

        Raises:
            ManifestError: no manifest names it; the message offers close names.
        """
        tail = Path(text).as_posix().rpartition(f"{PACKAGE}/")[2]
        for path in (Path(text).as_posix().removeprefix("./"), tail):
            if path in self._owners:
                return path
        near = get_close_matches(tail, self.paths, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise ManifestError(f"no manifest names {text}{hint}")

    def build(self, n: int, dest: Path) -> list[Path]:
        """Write the package as of chapter `n` to ``dest/minisgl``; return its files."""
        return list(self._copy(self.tree(n), dest / PACKAGE))

    @staticmethod
    def _copy(tree: dict[str, Path], dest: Path) -> Iterator[Path]:
        for path, source in tree.items():
            target = dest / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
            yield target
