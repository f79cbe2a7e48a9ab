"""Rules about a chapter's texts: words, symbols, page, output, parity, step 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.steplib import exercises
from tools.steplib.book import PACKAGE, Chapter
from tools.steplib.lint import Lint
from tools.steplib.lint_imports import stage_files
from tools.steplib.show import count_lines
from tools.steplib.stubs import (
    extract_source,
    parse_target,
    stub_source,
    target_file,
)

STEP0_LINES = 126
_FENCE = re.compile(r"[\s>]*(`{3,}|~{3,})\s*(\S*)")
_DRAWINGS = {"mermaid"}


def check(lint: Lint) -> None:
    """Apply the rules of this module."""
    _words(lint)
    for chapter in lint.book.chapters:
        _stubs(lint, chapter)
        _symbols(lint, chapter)
        _presence(lint, chapter)
    _step0(lint)


def _words(lint: Lint) -> None:
    """No word before the chapter that introduces it, prose aside."""
    first: dict[str, Chapter] = {}
    for chapter in lint.book.chapters:
        for word in chapter.introduces:
            first.setdefault(word, chapter)
    if not first:
        return
    options = "|".join(map(re.escape, sorted(first, key=len, reverse=True)))
    pattern = re.compile(rf"(?<!\w)(?:{options})(?!\w)")
    for chapter in lint.book.chapters:
        for path, line, text in _code(lint, chapter):
            for word in pattern.findall(text):
                if first[word].number > chapter.number:
                    message = f"{word} is introduced in {first[word].id} only"
                    lint.report(path, line, chapter, message)


def _code(lint: Lint, chapter: Chapter) -> Iterator[tuple[Path, int, str]]:
    """Lines of code of a chapter: package versions, programs, tests, exercises,
    blocks of pages."""
    tree = lint.modules[chapter.number].tree
    own = [tree[path] for path in chapter.touched if path in tree]
    for path in [*own, *stage_files(chapter), *lint.tests(chapter)]:
        for number, line in enumerate(lint.sources.text(path).split("\n"), 1):
            yield path, number, line
    texts = pages(lint, chapter)
    for folder in exercises.folders(chapter):
        for path in sorted(folder.rglob("*.py")):
            for number, line in enumerate(
                lint.sources.text(path).split("\n"), 1
            ):
                yield path, number, line
        texts += sorted(folder.glob("*.md"))
    for page in texts:
        for number, line in code_lines(lint.sources.text(page)):
            yield page, number, line


def pages(lint: Lint, chapter: Chapter) -> list[Path]:
    """Where the chapter's pages must lie: English, and Chinese once that began."""
    docs = lint.book.root / "docs"
    found = [docs / "en" / f"{chapter.name}.md"]
    if any((docs / "zh").glob("ch*.md")):
        found.append(docs / "zh" / f"{chapter.name}.md")
    return found


def code_lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines inside the fenced blocks of a page, drawings left out."""
    fence = language = ""
    for number, line in enumerate(text.split("\n"), 1):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence, language = mark[1], mark[2]
        elif mark and mark[1].startswith(fence) and not mark[2]:
            fence = ""
        elif fence and language not in _DRAWINGS:
            yield number, line


def _stubs(lint: Lint, chapter: Chapter) -> None:
    tree = lint.modules[chapter.number].tree
    for target in chapter.stubs:
        try:
            path, name = parse_target(target)
            source = target_file(path, chapter.dir, tree)
            if (
                lint.sources.facts(source).error is None
            ):  # else reported already
                stub_source(lint.sources.text(source), [name])
        except ValueError as error:
            lint.report_key(chapter, target, f"stub {target}: {error}", "stubs")
            continue
        if path in tree and path not in chapter.touched:
            message = (
                f"stub {target}: {chapter.id} neither adds nor changes the file"
            )
            lint.report_key(chapter, target, message, "stubs")


def _symbols(lint: Lint, chapter: Chapter) -> None:
    """Upstream symbols exist here under their name, and so do both swap sides."""
    n = chapter.number
    for target in chapter.symbols:
        _symbol(lint, chapter, target, [n], "symbols")
    for side, at in (("old", [n - 1, n]), ("new", [n])):
        target = chapter.swaps.get(side, "")
        if "::" in target:
            _symbol(lint, chapter, target, at, "swaps")
        elif side == "old" and target and "old_zh" not in chapter.swaps:
            message = "swaps: old is prose, so old_zh must say it in Chinese"
            lint.report_key(chapter, target, message, "swaps")


def _symbol(
    lint: Lint, chapter: Chapter, target: str, at: list[int], key: str
) -> None:
    """`target` must exist at one of the chapters `at`; `key` is who names it."""
    problem = ""
    for n in at:
        if n < 0:
            continue
        try:
            path, name = parse_target(target)
            source = target_file(path, chapter.dir, lint.modules[n].tree)
            if path in lint.modules[n].tree:  # follow a re-export
                origin = lint.modules[n].source_of(path, name.split(".")[0])
                source = lint.modules[n].tree[origin]
            if lint.sources.facts(source).error is None:
                extract_source(lint.sources.text(source), name)
            return
        except ValueError as error:
            problem = str(error)
    lint.report_key(chapter, target, f"{key} {target}: {problem}", key)


def _presence(lint: Lint, chapter: Chapter) -> None:
    manifest = chapter.dir / "stage.toml"
    for path in [chapter.main, chapter.output, *pages(lint, chapter)]:
        if not path.is_file():
            name = path.relative_to(lint.book.root).as_posix()
            lint.report(manifest, 1, chapter, f"{name} is missing")
    for test in chapter.tests:
        if not (lint.book.root / test).is_file():
            lint.report_key(chapter, test, f"{test} is missing")
    if not any(lint.sources.facts(path).parity for path in lint.tests(chapter)):
        message = "no test of [check].tests is marked parity"
        lint.report(manifest, 1, chapter, message)


def _step0(lint: Lint) -> None:
    chapter = lint.book.chapters[0]
    engine = chapter.dir / "engine.py"
    text = lint.sources.text(engine)
    if (lines := count_lines(text)) != STEP0_LINES:
        message = f"step 0 has exactly {STEP0_LINES} lines, not {lines}"
        lint.report(engine, max(lines, 1), chapter, message)
    for number, line in enumerate(text.split("\n"), 1):
        if PACKAGE in line.lower():
            lint.report(engine, number, chapter, f"step 0 never says {PACKAGE}")
