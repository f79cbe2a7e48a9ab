"""What the pages of the book show of the exercises."""

from __future__ import annotations

from tools.steplib import exercises
from tools.steplib.book import Book
from tools.steplib.exercises import Exercise

_INDEX = "exercises.md"
_LEAD = {
    "en": "Exercises with a starter, hints and a test ([how they work]({})):",
    "zh": "带起始代码、提示和测试的练习（[用法]({})）：",
}
_MINUTES = {"en": "about {} minutes", "zh": "约 {} 分钟"}
_COMMA = {"en": ", ", "zh": "，"}
_COLON = {"en": ": ", "zh": "："}


def of_chapter(book: Book, language: str, number: int) -> str:
    """A chapter's exercises as a list.

    Raises:
        ValueError: the chapter has none.
    """
    mine = [e for e in exercises.load(book) if e.chapter.number == number]
    if not mine:
        raise ValueError(f"ch{number:02d} has no exercises")
    rows = [_LEAD[language].format(_INDEX), ""]
    return "\n".join([*rows, *(_row(e, language) for e in mine)])


def _row(exercise: Exercise, language: str) -> str:
    name = f"[{exercise.id}]({_INDEX}#{exercise.id})"
    facts = (
        f"**{exercise.title[language]}**",
        exercise.stars,
        _time(exercise, language),
    )
    return f"- {name} " + _COMMA[language].join(facts)


def _time(exercise: Exercise, language: str) -> str:
    return _MINUTES[language].format(exercise.minutes)


def statements(book: Book, language: str) -> str:
    """The statements of all exercises, each below a heading of its own."""
    parts, colon = [], _COLON[language]
    for exercise in exercises.load(book):
        text = exercise.statement(language).read_text(encoding="utf-8")
        body = text.partition("\n")[2].strip()
        title = exercise.title[language]
        command = f"`python tools/steps.py start {exercise.id}`"
        facts = exercise.stars, _time(exercise, language), command
        parts.append(
            f'### <a id="{exercise.id}"></a>{exercise.id}{colon}{title}\n\n'
            f"{' · '.join(facts)}\n\n{body}"
        )
    return "\n\n".join(parts)
