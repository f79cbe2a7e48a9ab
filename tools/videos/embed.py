"""Put rendered films into a built site.

A page has a line in their place (`<p class="film" data-film="NAME">`, which the block
`film: NAME` writes). Films that were not rendered leave it as it is.
"""

from __future__ import annotations

import html
import re
import shutil
from functools import partial
from pathlib import Path

from tools.videos import narration
from tools.videos.narration import LANGUAGES

_PLACE = re.compile(r'<p class="film" data-film="(\w+)">.*?</p>', re.DOTALL)
_LABELS = {"en": "English", "zh": "中文"}


def files(name: str) -> list[str]:
    """What a film consists of, by file name."""
    tracks = [f"{name}.{language}.vtt" for language in LANGUAGES]
    return [f"{name}.mp4", f"{name}.jpg", *tracks]


def embed(site: Path, films: Path) -> list[str]:
    """Copy finished films and show them in the pages; returns their names."""
    shown: set[str] = set()
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        language = "zh" if page.is_relative_to(site / "zh") else "en"
        depth = len(page.relative_to(site).parts) - 1
        found = {
            name
            for name in _PLACE.findall(text)
            if all((films / file).is_file() for file in files(name))
        }
        if found:
            folder = "../" * depth + "films/"
            text = _PLACE.sub(partial(_filled, found, language, folder), text)
            page.write_text(text, encoding="utf-8")
        shown |= found
    for name in shown:
        (site / "films").mkdir(exist_ok=True)
        for file in files(name):
            shutil.copyfile(films / file, site / "films" / file)
    return sorted(shown)


def _filled(
    films: set[str], language: str, folder: str, place: re.Match[str]
) -> str:
    """What stands in a film's place: the film, if it is there."""
    return player(place[1], language, folder) if place[1] in films else place[0]


def player(name: str, language: str, folder: str) -> str:
    """The element that plays a film, with subtitles in the page's language on."""
    title = html.escape(narration.title(name, language))
    tracks = "".join(
        f'<track kind="subtitles" src="{folder}{name}.{lang}.vtt" '
        f'srclang="{lang}" label="{_LABELS[lang]}"'
        f"{' default' if lang == language else ''}>"
        for lang in LANGUAGES
    )
    return (
        f'<video class="film" controls preload="none" width="1280" height="720" '
        f'title="{title}" poster="{folder}{name}.jpg">'
        f'<source src="{folder}{name}.mp4" type="video/mp4">{tracks}</video>'
    )
