"""What stands in the generated blocks of the book's pages."""

from __future__ import annotations

import difflib
import html
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from tools.drawing.registry import draw
from tools.steplib import docexercises, doctables, upstream
from tools.steplib.book import PACKAGE, Book, Chapter
from tools.steplib.pages import Block, BlockError, Page
from tools.steplib.stubs import STAGE, extract_source
from tools.videos import narration

_CODE = re.compile(
    r"(?P<path>[^\s@]+?)(?:::(?P<symbol>[\w.]+))?(?:@(?P<at>ch\d\d))?"
    r"(?: +lines (?P<first>\d+)-(?P<last>\d+))?"
)
_SYNTAX = "code: PATH[::SYMBOL][@chNN] [lines A-B]"
_LANGUAGES = {
    "py": "python",
    "md": "markdown",
    "txt": "text",
    "cu": "cuda",
    "h": "cuda",
    "": "text",
}
_ROOT_FOLDERS = ("stages/", "tests/", "tools/")
_SPAN = {"en": "lines {}-{}", "zh": "第 {}-{} 行"}


def refresh(book: Book, page: Page) -> tuple[str, list[int]]:
    """The page with its blocks written anew, and the lines of those that changed.

    Raises:
        BlockError: a block is unclosed or names something that is not there.
    """
    lines, stale = page.text.split("\n"), []
    for block in reversed(page.blocks()):
        try:
            body = _RENDER[block.kind](book, page, block.argument)
        except (ValueError, OSError, SyntaxError) as error:
            where = f"{page.name}:{block.start + 1}: {block.kind}"
            why = str(error)
            if isinstance(error, OSError) and error.filename:
                name = Path(error.filename)
                if name.is_relative_to(book.root):
                    name = name.relative_to(book.root)
                why = f"{name.as_posix()}: {error.strerror}"
            raise BlockError(f"{where}: {why}") from None
        new = _framed(block, body)
        if lines[block.start + 1 : block.end] != new:
            stale.append(block.start + 1)
            lines[block.start + 1 : block.end] = new
    return "\n".join(lines), sorted(stale)


def _framed(block: Block, body: str) -> list[str]:
    inner = textwrap.indent(body.rstrip("\n"), block.indent)
    return ["", *inner.split("\n"), ""]


def _at(book: Book, page: Page, which: str | None = None) -> Chapter:
    """The chapter a block shows: named by `@chNN`, else the page's, else the last."""
    own = page.chapter
    number = book.chapter(own).number if own is not None else book.last
    if which is None:
        return book.chapter(number)
    chapter = book.chapter(which)
    if chapter.number > number:
        raise ValueError(f"{which} is later than this page's ch{number:02d}")
    return chapter


def _locate(book: Book, chapter: Chapter, path: str) -> tuple[Path, str]:
    """The file a path means at that chapter, and how captions name it."""
    if path == "main.py" or path.startswith(STAGE):
        path = f"stages/{chapter.name}/{path.removeprefix(STAGE)}"
    if path.startswith(_ROOT_FOLDERS):
        if path.startswith("stages/"):
            owner = book.chapter(path.split("/")[1])
            if owner.number > chapter.number:
                raise ValueError(f"{path} is later than {chapter.id}")
        found: Path | None = book.root / path
    else:
        path = path.removeprefix(f"{PACKAGE}/")
        found = book.source(path, chapter.number)
        path = f"{PACKAGE}/{path}"
    if found is None or not found.is_file():
        raise ValueError(f"{path}: no such file in {chapter.id}")
    return found, path


def fenced(text: str, info: str) -> str:
    """`text` in a code fence longer than any inside, without spaces at line ends."""
    ticks = max((len(m) for m in re.findall(r"`{3,}", text)), default=2) + 1
    fence = "`" * max(3, ticks)
    lines = "\n".join(line.rstrip() for line in text.rstrip().split("\n"))
    return f"{fence}{info}\n{lines}\n{fence}"


def _code(book: Book, page: Page, argument: str) -> str:
    match = _CODE.fullmatch(argument)
    if match is None:
        raise ValueError(f"{argument!r}: the form is {_SYNTAX}")
    path, title = _locate(book, _at(book, page, match["at"]), match["path"])
    text = path.read_text(encoding="utf-8")
    if match["symbol"]:
        text = textwrap.dedent(extract_source(text, match["symbol"])[2])
        title += f" · {match['symbol']}"
    if match["first"]:
        first, last, lines = (
            int(match["first"]),
            int(match["last"]),
            text.splitlines(),
        )
        if not 1 <= first <= last <= len(lines):
            raise ValueError(
                f"lines {first}-{last}: {title} has {len(lines)} lines"
            )
        text = textwrap.dedent("\n".join(lines[first - 1 : last]))
        title += " · " + _SPAN[page.language].format(first, last)
    if match["at"] and book.chapter(match["at"]).number != page.chapter:
        title += f" · {match['at']}"
    suffix = path.suffix.lstrip(".")
    return fenced(
        text.strip("\n"), f'{_LANGUAGES.get(suffix, suffix)} title="{title}"'
    )


def _tree(book: Book, page: Page, argument: str) -> str:
    chapter = _at(book, page, argument or None)
    tree = book.tree(chapter.number)
    if not tree:
        raise ValueError(f"{chapter.id} has no package yet")
    return fenced("\n".join(tree_lines(chapter, tree)), "text")


def tree_lines(chapter: Chapter, tree: dict[str, Path]) -> list[str]:
    """The package as indented lines, new, changed and early files marked.

    A folder without any of them is a line with the number of its files.
    """
    marks = dict.fromkeys(chapter.add, "new") | dict.fromkeys(
        chapter.change, "changed"
    )
    marks |= {
        path: f"early, see {when}" for path, when in chapter.early.items()
    }
    order = sorted(
        tree, key=lambda p: [(1, x) for x in p.split("/")[:-1]] + [(0, p)]
    )
    rows, above = [(f"{PACKAGE}/", "")], ""
    for path in order:
        *parents, name = path.split("/")
        for depth in range(1, len(parents) + 1):
            folder = "/".join(parents[:depth]) + "/"
            inside = [p for p in tree if p.startswith(folder)]
            folded = marks.keys().isdisjoint(inside)
            if not above.startswith(folder):
                size = f"{len(inside)} file{'s' * (len(inside) > 1)}"
                line = "  " * depth + f"{parents[depth - 1]}/"
                rows.append((line, size if folded else ""))
            if folded:
                break
        else:
            rows.append(("  " * (len(parents) + 1) + name, marks.get(path, "")))
        above = path
    width = max(len(name) for name, _ in rows) + 2
    return [f"{name:{width}}{mark}".rstrip() for name, mark in rows]


def _diff(book: Book, page: Page, argument: str) -> str:
    chapter = _at(book, page)
    if chapter.number == 0:
        raise ValueError("ch00 has no chapter before it")
    before, path = _locate(book, book.chapter(chapter.number - 1), argument)
    after, _ = _locate(book, chapter, argument)
    old, new = (
        p.read_text(encoding="utf-8").splitlines() for p in (before, after)
    )
    lines = list(difflib.unified_diff(old, new, lineterm="", n=3))[2:]
    if not lines:
        raise ValueError(f"{path}: {chapter.id} does not change it")
    arrow = f"ch{chapter.number - 1:02d} → {chapter.id}"
    return fenced("\n".join(lines), f'diff title="{path} · {arrow}"')


def _output(book: Book, page: Page, argument: str) -> str:
    if argument and not re.fullmatch(r"ch\d\d", argument):
        text = (book.root / argument).read_text(encoding="utf-8")
        if not text.startswith("$ "):
            raise ValueError(f"{argument}: its first line must be `$ COMMAND`")
        return fenced(text, "console")
    chapter = _at(book, page, argument or None)
    if not chapter.output.is_file():
        raise ValueError(f"stages/{chapter.name}/output.txt: missing")
    command = f"$ python tools/steps.py run {chapter.number}"
    printed = chapter.output.read_text(encoding="utf-8")
    return fenced(f"{command}\n{printed}", "console")


def _upstream(book: Book, page: Page, argument: str) -> str:
    path, _, name = argument.partition("::")
    symbol = upstream.find(path, name)
    span = _SPAN[page.language].format(*symbol.lines)
    label = f"`{PACKAGE}/{symbol.path}`" + (f" · {span}" if name else "")
    box = [f'!!! upstream "mini-sglang · {name or symbol.path}"']
    box.append(f"    [{label}]({upstream.url(symbol)})")
    if symbol.signature:
        box[-1] += ":"
        box.append(f"    `{symbol.signature}`")
    return "\n".join(box)


def _table(book: Book, page: Page, argument: str) -> str:
    if page.chapter is not None:
        raise ValueError(
            "tables tell of all chapters and belong on a general page"
        )
    return doctables.table(book, page, argument)


def _diagram(book: Book, page: Page, argument: str) -> str:
    title = draw(argument, page.language).title
    return f"![{title}](diagrams/{argument}.svg){{ .diagram }}"


_FILM = {
    "en": "Film: <em>{}</em>, with a voice and subtitles. <code>make videos</code> "
    "renders it, <code>make book</code> then shows it here.",
    "zh": "短片：<em>{}</em>，有英语配音和中英文字幕。<code>make videos</code> 渲染它，"
    "之后 <code>make book</code> 会把它放在这里。",
}


def _film(book: Book, page: Page, argument: str) -> str:
    title = html.escape(narration.title(argument, page.language), quote=False)
    text = _FILM[page.language].format(title)
    return f'<p class="film" data-film="{argument}">{text}</p>'


def _exercises(book: Book, page: Page, argument: str) -> str:
    if argument:
        raise ValueError("the block takes no argument: it shows the page's own")
    number = page.chapter
    if number is None:
        return docexercises.statements(book, page.language)
    return docexercises.of_chapter(book, page.language, number)


_RENDER: dict[str, Callable[[Book, Page, str], str]] = {
    "code": _code,
    "tree": _tree,
    "diff": _diff,
    "output": _output,
    "upstream": _upstream,
    "table": _table,
    "diagram": _diagram,
    "film": _film,
    "exercises": _exercises,
}
