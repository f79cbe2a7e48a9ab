"""Numbers that a command printed, from docs/outputs."""

from __future__ import annotations

import re
from pathlib import Path

from tools.videos.theme import FilmError

OUTPUTS = Path(__file__).resolve().parents[2] / "docs" / "outputs"


def printed(file: str, pattern: str) -> tuple[str, ...]:
    """The groups of a pattern in a recorded output.

    Raises:
        FilmError: the output has nothing of that form.
    """
    found = re.search(pattern, (OUTPUTS / file).read_text(encoding="utf-8"))
    if found is None:
        raise FilmError(f"docs/outputs/{file} has no {pattern!r}")
    return found.groups()
