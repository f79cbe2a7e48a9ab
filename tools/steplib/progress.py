"""What a reader has done: kept in practice/progress.json of the main checkout."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.steplib.worktrees import FOLDER


@dataclass
class Entry:
    """One chapter or exercise.

    green: when it was graded green first, empty before.
    last: what the last grade said, ``green`` or ``red``.
    hints: how many have been shown.
    """

    green: str = ""
    last: str = ""
    hints: int = 0


class Progress:
    """Reads the file at once, writes it after every change."""

    def __init__(self, main: Path) -> None:
        self.path = main / FOLDER / "progress.json"
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            self.entries = {key: Entry(**value) for key, value in data.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self.entries = {}  # absent, or written by hand: nothing is known

    def of(self, id: str) -> Entry:
        """What is known of a chapter or exercise."""
        return self.entries.get(id, Entry())

    def graded(self, id: str, green: bool) -> None:
        """A grade has come to a verdict."""
        entry = self.entries.setdefault(id, Entry())
        entry.last = "green" if green else "red"
        if green and not entry.green:
            entry.green = time.strftime("%Y-%m-%d")
        self._write()

    def hint(self, id: str, shown: int) -> None:
        """That many hints have been shown."""
        self.entries.setdefault(id, Entry()).hints = shown
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        data = {key: asdict(entry) for key, entry in self.entries.items()}
        text = json.dumps(dict(sorted(data.items())), indent=1)
        self.path.write_text(f"{text}\n", encoding="utf-8")
