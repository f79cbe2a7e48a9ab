"""The diagrams: text fits, both languages, files and pages are current."""

import re
import xml.etree.ElementTree as ET

import pytest

from tools.diagrams import files
from tools.drawing.canvas import WIDTH, Canvas, DrawingError, text_width
from tools.drawing.registry import DIAGRAMS, draw
from tools.steplib.book import ROOT
from tools.steplib.pages import is_tag_tree

draw("prefill-decode", "en")
NAMES = sorted(DIAGRAMS)


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_valid_and_has_a_description_in_both_languages(name):
    english, chinese = draw(name, "en"), draw(name, "zh")
    for canvas in (english, chinese):
        root = ET.fromstring(canvas.svg())
        assert root.get("aria-label") == canvas.title
        assert canvas.width == WIDTH
        sizes = [
            float(t.get("font-size"))
            for t in root.iter()
            if t.get("font-size") is not None
        ]
        # At 390 px a page leaves about 360 for the picture.
        assert min(sizes) * 360 / WIDTH > 8
    assert re.search("[一-鿿]", chinese.title)
    assert not re.search("[一-鿿]", english.svg())
    assert english.height == chinese.height


def test_there_are_enough_of_them():
    assert len(NAMES) >= 10


def test_text_that_does_not_fit_is_refused():
    canvas = Canvas("", height=100)
    with pytest.raises(DrawingError, match="wider than its box"):
        canvas.box(0, 0, 40, 20, "far too long")
    with pytest.raises(DrawingError, match="outside"):
        canvas.text(400, 10, "over the right edge")
    with pytest.raises(DrawingError, match="higher"):
        canvas.box(0, 0, 40, 20, "a\nb\nc")
    canvas.box(0, 0, 40, 20, "fits")


def test_wide_characters_count_as_wide():
    assert text_width("页表") == 2 * text_width("页")
    assert text_width("页") > 1.5 * text_width("a")


def test_files_are_those_of_the_scenes(tmp_path):
    wanted = files(tmp_path)
    assert len(wanted) == 2 * len(NAMES)


@pytest.mark.skipif(is_tag_tree(ROOT), reason="a tag holds part of the book")
def test_every_picture_stands_on_a_page_of_each_language():
    for language in ("en", "zh"):
        text = "".join(
            p.read_text(encoding="utf-8")
            for p in (ROOT / "docs" / language).glob("*.md")
        )
        shown = set(re.findall(r"<!-- diagram: ([\w-]+) -->", text))
        assert shown == set(NAMES)
