"""What the tests of lint share: the planted book's paths and its findings."""

from __future__ import annotations

import re
from pathlib import Path

from tools.steplib import lint
from tools.steplib.book import Book

ONE, TWO = "stages/ch01-core/stage.toml", "stages/ch02-radix/stage.toml"
FROZEN = "stages/ch01-core/files/minisgl/core.py"
ENGINE = "stages/ch00-step0/engine.py"


def found(root: Path) -> list[str]:
    """Every finding as a line."""
    return [str(finding) for finding in lint.run(Book.load(root))]


def expect(root: Path, *patterns: str) -> None:
    """Each pattern matches one finding, and there are no others."""
    lines = found(root)
    assert len(lines) == len(patterns), lines
    for pattern in patterns:
        assert any(re.search(pattern, line) for line in lines), (pattern, lines)
