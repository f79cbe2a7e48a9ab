"""What the book promises of step 0's engine, whatever a reader writes there."""

from pathlib import Path

ENGINE = Path(__file__).parents[2] / "stages" / "ch00-step0" / "engine.py"


def test_the_engine_has_126_lines_of_80_columns():
    lines = ENGINE.read_text().splitlines()
    assert len(lines) == 126
    assert max(map(len, lines)) <= 80


def test_the_engine_stands_alone():
    assert "minisgl" not in ENGINE.read_text()
