"""The generated tables of the book: chapters, roadmap, upstream's modules."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable

from tools.steplib import exercises, upstream
from tools.steplib.book import PACKAGE, Book, Chapter
from tools.steplib.pages import Page

ROADMAP = upstream.TOOLS / "roadmap.toml"
_HEADS = {
    "chapters": {
        "en": ["Chapter", "Title", "Naive", "Real", "Engine lines"],
        "zh": ["章", "标题", "朴素", "真实", "引擎行数"],
    },
    "roadmap": {
        "en": ["Part", "Chapter", "Title"],
        "zh": ["部分", "章", "标题"],
    },
    "exercises": {
        "en": ["Exercise", "Title", "Chapter", "How hard", "Minutes"],
        "zh": ["练习", "题目", "章", "难度", "分钟"],
    },
    "modules": {
        "en": ["Upstream", "Lines", "Here", "Chapters, or why not"],
        "zh": ["上游", "行数", "这里", "章，或为何没有"],
    },
}
_PLANNED = {"en": "{} (planned)", "zh": "{}（计划中）"}
_DAYS = {"en": " (days: {})", "zh": "（{} 天）"}
_ARRIVES = {"en": "arrives in {}", "zh": "在 {} 引入"}


def table(book: Book, page: Page, name: str) -> str:
    """One of the tables as Markdown, in the page's language.

    Raises:
        ValueError: no such table, or a module has neither file nor reason.
    """
    if name not in _TABLES:
        raise ValueError(f"no table {name!r}; known: {', '.join(_TABLES)}")
    head = _HEADS[name][page.language]
    rows = [head, ["---"] * len(head), *_TABLES[name](book, page)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def engine_lines(book: Book, chapter: Chapter) -> int:
    """Lines of the package at a chapter; ch00's engine lies in its stage folder."""
    files = list(book.tree(chapter.number).values())
    if not files:
        files = [p for p in chapter.dir.glob("*.py") if p != chapter.main]
    return sum(p.read_text(encoding="utf-8").count("\n") for p in files)


def _link(page: Page, chapter: Chapter) -> str:
    """Link to a chapter's page in the same language, plain while it is unwritten."""
    file = f"{chapter.name}.md"
    found = (page.path.parent / file).is_file()
    return f"[{chapter.id}]({file})" if found else chapter.id


def _chapters(book: Book, page: Page) -> Iterable[list[str]]:
    for chapter in book.chapters:
        old = chapter.swaps.get("old", "")
        if page.language == "zh":
            old = chapter.swaps.get("old_zh", old)
        swaps = [_code(old), _code(chapter.swaps.get("new", ""))]
        lines = f"{engine_lines(book, chapter):,}"
        yield [
            _link(page, chapter),
            chapter.title[page.language],
            *swaps,
            lines,
        ]


def _code(text: str) -> str:
    return f"`{text}`" if "::" in text else text


def _roadmap(book: Book, page: Page) -> Iterable[list[str]]:
    parts = tomllib.loads(ROADMAP.read_text(encoding="utf-8"))["part"]
    number = 0
    for at, part in enumerate(parts):
        days = _DAYS[page.language].format(part["days"])
        label = f"{at} {part['title'][page.language]}{days}"
        for title in part["chapters"]:
            if number <= book.last:
                chapter = book.chapter(number)
                row = [_link(page, chapter), chapter.title[page.language]]
            else:
                planned = _PLANNED[page.language].format(title[page.language])
                row = [f"ch{number:02d}", planned]
            yield [label, *row]
            label, number = "", number + 1


def _modules(book: Book, page: Page) -> Iterable[list[str]]:
    why = upstream.reasons()
    for path, module in upstream.modules().items():
        symbol = upstream.find(path)
        row = [f"[`{path}`]({upstream.url(symbol)})", str(module["lines"])]
        if owners := book.owners(path):
            here = ", ".join(_link(page, chapter) for chapter in owners)
            yield [*row, f"`{PACKAGE}/{path}`", here]
        elif path in why["missing"]:
            yield [
                *row,
                "",
                _reason(why["missing"][path], page.language, why["zh"]),
            ]
        else:
            raise ValueError(
                f"{path}: neither here nor in tools/upstream_reasons.toml"
            )


def _reason(text: str, language: str, zh: dict[str, str]) -> str:
    if match := re.fullmatch(r"arrives in (ch\d\d)", text):
        return _ARRIVES[language].format(match[1])
    if language == "en":
        return text
    if text not in zh:
        raise ValueError(f"tools/upstream_reasons.toml: [zh] lacks {text!r}")
    return zh[text]


def _exercises(book: Book, page: Page) -> Iterable[list[str]]:
    for exercise in exercises.load(book):
        yield [
            f"[{exercise.id}](#{exercise.id})",
            exercise.title[page.language],
            _link(page, exercise.chapter),
            exercise.stars,
            str(exercise.minutes),
        ]


_TABLES: dict[str, Callable[[Book, Page], Iterable[list[str]]]] = {
    "chapters": _chapters,
    "roadmap": _roadmap,
    "modules": _modules,
    "exercises": _exercises,
}
