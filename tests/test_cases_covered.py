"""Every case C01-C32 whose chapter exists has a test named after it."""

import re
from pathlib import Path

from tools.steplib.book import ROOT, Book

# The last chapter that brings tests of these cases -> the cases.
DUE = {
    6: [12, 13, 14, 15, 25, 26],
    11: [1, 2, 3, 4, 5, 6, 7, 11, 32],
    15: [9, 10, *range(16, 25), 31],
    20: [27, 28, 29, 30],
    24: [8],
}
_TEST = re.compile(r"^\s*(?:async )?def test_c(\d\d)_\w+\(", re.MULTILINE)


def cases_in(folder: Path) -> set[int]:
    """Numbers in the names of the test functions below `folder`."""
    texts = (
        path.read_text(encoding="utf-8") for path in folder.rglob("test_*.py")
    )
    return {int(number) for text in texts for number in _TEST.findall(text)}


def uncovered(folder: Path, newest: int) -> list[str]:
    due = {
        case for last, cases in DUE.items() if last <= newest for case in cases
    }
    return [f"C{case:02d}" for case in sorted(due - cases_in(folder))]


def test_every_case_of_a_finished_chapter_has_a_test():
    assert not uncovered(ROOT / "tests", Book.load().last)


def test_all_cases_are_due_once():
    assert sorted(case for cases in DUE.values() for case in cases) == [
        *range(1, 33)
    ]


def test_a_missing_case_is_noticed(tmp_path):
    names = ["12_edges", "13_seed", "14_nan", "15_batch", "26_rope"]
    text = "".join(f"def test_c{name}(): ...\n" for name in names)
    (tmp_path / "test_planted.py").write_text(
        text + "# def test_c25_tied(): ...\n"
    )
    assert uncovered(tmp_path, 5) == []
    assert uncovered(tmp_path, 6) == ["C25"]
