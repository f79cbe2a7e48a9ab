"""Marks of the tests: `until(chapter, reason)` skips a test outside its chapters.

And what several chapters' tests ask for.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def newest_chapter(root: Path) -> int:
    """MINISGL_CHAPTER, else the highest chapter that has a folder in stages/."""
    given = os.environ.get("MINISGL_CHAPTER")
    if given:
        return _number(given)
    folders = (root / "stages").glob("ch[0-9][0-9]-*")
    return max((int(folder.name[2:4]) for folder in folders), default=0)


def _number(chapter: int | str) -> int:
    return int(str(chapter).removeprefix("ch"))


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    newest = newest_chapter(Path(__file__).resolve().parents[1])
    for item in items:
        for mark in item.iter_markers("until"):
            chapter, reason = _arguments(*mark.args, **mark.kwargs)
            if newest >= _number(chapter):
                text = f"holds until ch{_number(chapter):02d}: {reason}"
                item.add_marker(pytest.mark.skip(reason=text))


def _arguments(chapter: int | str, reason: str) -> tuple[int | str, str]:
    return chapter, reason


@pytest.fixture
def rank() -> Iterator[Callable[[int, int], None]]:
    """Makes this process one rank of several, for layers and weights."""
    # There are ranks from chapter 16 on.
    from minisgl.distributed import set_tp_info
    from minisgl.distributed.info import clear_tp_info

    def become(number: int, size: int) -> None:
        clear_tp_info()
        set_tp_info(number, size)

    clear_tp_info()
    yield become
    clear_tp_info()
