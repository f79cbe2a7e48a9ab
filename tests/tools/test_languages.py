"""Both languages show the same code, outputs, pictures and boxes, in one order."""

import re

import pytest

from tools.steplib.book import ROOT
from tools.steplib.pages import is_tag_tree, read_pages

pytestmark = pytest.mark.skipif(
    is_tag_tree(ROOT), reason="a tag's own tree holds part of the book"
)
PAGES = {
    language: {
        page.path.name: page
        for page in read_pages(ROOT)
        if page.language == language
    }
    for language in ("en", "zh")
}
_FENCE = re.compile(
    r"^ *(`{3,})(\w*).*?\n(.*?)^ *\1$", re.MULTILINE | re.DOTALL
)


def shape(page):
    """What a reader of either language must meet, in order."""
    text = re.sub(
        r"<!-- (\w+)(: *[^>]*?)? *-->.*?<!-- /\1 -->", "", page.text, flags=re.S
    )
    found = [(b.kind, b.argument) for b in page.blocks()]
    fences = [
        (info, content if info in {"bash", "python", "toml", "console"} else "")
        for _, info, content in _FENCE.findall(text)
    ]
    prose = _FENCE.sub("", text)
    boxes = re.findall(r"^ *(?:!!!|\?\?\?) (\w+)", prose, re.MULTILINE)
    headings = re.findall(r"^(#+) ", prose, re.MULTILINE)
    return found, fences, boxes, headings


def without_comments(fences):
    """Comments in hand-written examples are translated."""
    return [(info, re.sub(r" *#.*", "", code)) for info, code in fences]


def test_every_page_is_there_in_both_languages():
    assert sorted(PAGES["en"]) == sorted(PAGES["zh"])


@pytest.mark.parametrize("name", sorted(PAGES["en"]))
def test_a_page_has_the_same_parts_in_both_languages(name):
    english, chinese = (shape(PAGES[lang][name]) for lang in ("en", "zh"))
    assert english[0] == chinese[0], "generated blocks"
    assert without_comments(english[1]) == without_comments(chinese[1]), (
        "examples"
    )
    assert english[2] == chinese[2], "boxes"
    assert english[3] == chinese[3], "headings"
