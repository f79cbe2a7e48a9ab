"""The films: what is said, what is seen, and that both are in step."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tools.steplib.book import ROOT
from tools.steplib.pages import is_tag_tree
from tools.videos import (
    checks,
    embed,
    encode,
    narration,
    recorders,
    subtitles,
    voice,
)
from tools.videos.film import EVENTS, At, Cue, duration, guessed, load
from tools.videos.narration import NAMES, Line
from tools.videos.paint import paint
from tools.videos.preview import sheet
from tools.videos.stage import Stage
from tools.videos.theme import HEIGHT, PAPER, WIDTH, FilmError

CHINESE = re.compile("[一-鿿]")
NEEDED = pytest.mark.skipif(
    not (shutil.which("ffmpeg") and shutil.which("espeak-ng")),
    reason="ffmpeg or espeak-ng is not installed",
)
WHOLE = pytest.mark.skipif(
    is_tag_tree(ROOT), reason="a tag has an older engine"
)


@pytest.mark.parametrize("name", NAMES)
def test_the_narration_is_told_in_both_languages(name):
    film = load(name)
    assert len(film.lines) >= 10
    for line in film.lines:
        assert 20 < len(line.en) < 170 and not CHINESE.search(line.en)
        assert CHINESE.search(line.zh)
        numbers = [re.findall(r"\d[\d.,]*\d|\d", t) for t in (line.en, line.zh)]
        assert {*numbers[1]} <= {*numbers[0]} | {
            n.strip("-") for n in numbers[0]
        }
    assert narration.title(name, "en") == film.title
    assert CHINESE.search(narration.title(name, "zh")) or name == "graph"


@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_are_said_come_from_the_events(name):
    names = re.compile(r"\{[^}]*\}|H200|[Rr]equest \d|请求 \d")
    for key, said in narration.read(name).items():
        if isinstance(said, dict):
            for text in said.values():
                assert not re.search(r"\d", names.sub("", text)), (key, text)


@pytest.mark.parametrize("name", NAMES)
def test_every_moment_fits_the_frame(name):
    film = load(name)
    cues = film.cues(guessed(film))
    assert 90 <= duration(cues) <= 120
    moments = np.arange(0, duration(cues), 0.5)
    seen = [film.shapes(cues, float(now)) for now in moments]
    assert len({tuple(shapes) for shapes in seen}) > 3 * len(film.lines)
    assert checks.overlapping(film) == []


def test_stills(tmp_path):
    film = load("radix")
    sheet(film, tmp_path / "radix.png")
    assert (tmp_path / "radix.png").stat().st_size > 50_000
    picture = paint(film.shapes(film.cues(guessed(film)), 0))
    assert picture.size == (WIDTH, HEIGHT)
    assert picture.getpixel((5, 5)) == PAPER


def test_texts_that_do_not_fit_are_refused():
    stage = Stage()
    stage.text(40, 100, "short")
    with pytest.raises(FilmError, match="a long way out of the frame"):
        stage.text(1100, 100, "a long way out of the frame")
    with pytest.raises(FilmError, match="leaves"):
        stage.text(40, 640, "where subtitles are")
    with pytest.raises(FilmError, match="does not fit"):
        stage.label(40, 100, 50, 40, "too wide")
    assert len(stage.shapes) == 1


def test_texts_on_one_another_are_found():
    def draw(stage, at):
        stage.text(100, 300, "one text")
        stage.text(150, 310, "another text", show=at("second"))

    film = replace(load("radix"), draw=draw, lines=LINES)
    found = "'one text' and 'another text' overlap at the end of second"
    assert checks.overlapping(film) == [found]


LINES = [
    Line("first", "This is the first sentence.", "第一句。"),
    Line("second", "And this is the second one.", "第二句。"),
]


def test_movements_follow_the_sentences():
    cues = {"a": Cue(1, 3), "b": Cue(4, 8)}
    assert At(cues, 0.9)("a") == 0 and At(cues, 2)("a") == 1
    assert 0.4 < At(cues, 1.45)("a") < 0.6
    assert At(cues, 5.9)("b", after=0.5) == 0 and At(cues, 7)("b", 0.5) == 1
    assert At(cues, 6).through("b") == 0.5 and At(cues, 6).reached("b", 0.5)
    assert (
        At(cues, 3).during("a", "b") == 1 and At(cues, 6).during("a", "b") == 0
    )


def test_subtitles_are_read_as_they_were_written(tmp_path):
    film = replace(load("radix"), lines=LINES)
    cues = [Cue(1.25, 3.5), Cue(3.75, 3671.0)]
    for path, language in zip(
        subtitles.write(film, cues, tmp_path), narration.LANGUAGES, strict=True
    ):
        said = [getattr(line, language) for line in LINES]
        expected = [
            (c.start, c.end, s) for c, s in zip(cues, said, strict=True)
        ]
        assert subtitles.read(path) == expected
        assert path.read_text().startswith("WEBVTT\n\n00:00:01.250 --> ")


def test_cues_out_of_order_are_found():
    assert checks.order([(1, 2), (2, 3)], 4) == []
    assert len(checks.order([(1, 3), (2, 3.5), (3.5, 5)], 4)) == 2


def test_a_voice_that_is_not_in_step_is_found():
    times = [(1.0, 3.0), (4.0, 6.0)]
    samples = np.zeros(8 * voice.RATE, np.float32)
    for start, end in times:
        samples[int(start * voice.RATE) : int(end * voice.RATE)] = 0.1
    assert checks.in_step(times, samples) == []
    assert checks.in_step(times, np.roll(samples, voice.RATE)) != []
    assert "nobody speaks" in checks.in_step(times, samples * 0)[0]
    extra = samples.copy()
    extra[int(3.3 * voice.RATE) : int(3.6 * voice.RATE)] = 0.1
    assert checks.in_step(times, extra) == [
        "somebody speaks before the cue at 4.00 s"
    ]


@NEEDED
def test_a_short_film_from_end_to_end(tmp_path):
    def draw(stage, at):
        stage.text(100, 300, f"{round(4 * at.through('second'))} of 4", 60)

    film = replace(load("radix"), lines=LINES, draw=draw)
    files = voice.speak([line.en for line in LINES], "espeak", tmp_path)
    parts = [*map(voice.read, files)]
    cues = film.cues([*map(voice.seconds, parts)])
    track = tmp_path / "track.wav"
    voice.write_track(parts, cues, track)
    subtitles.write(film, cues, tmp_path)
    frames, painted = encode.encode(film, cues, track, tmp_path / "radix.mp4")
    assert painted == 5 and frames == round(duration(cues) * 24)
    (wrong,) = checks.check(film, tmp_path)
    assert wrong == f"radix: {duration(cues):.1f} s, not 90 to 120"
    # One sentence later than its subtitle says, and a cue too few.
    path = tmp_path / "radix.zh.vtt"
    path.write_text(path.read_text().rpartition("\n\n")[0])
    late = [Cue(c.start + 1.5, c.end + 1.5) for c in cues]
    voice.write_track(parts, late, track)
    encode.encode(film, late, track, tmp_path / "radix.mp4")
    text = "\n".join(checks.check(film, tmp_path))
    assert "nobody speaks at" in text and "cues: 2 en, 1 zh" in text


def test_a_missing_program_is_told_in_a_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FilmError, match="apt-get install espeak-ng"):
        voice.speak(["A sentence."], "espeak", tmp_path)


@pytest.mark.parametrize(
    "args", [["render", "nosuch"], ["render", "--voice", "x"]]
)
def test_wrong_names_are_told_in_a_line(args):
    command = [sys.executable, "-m", "tools.videos", *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.fullmatch(r"error: no .* known: .*\n", done.stderr)


def test_a_site_shows_films_that_are_rendered(tmp_path):
    site, films = tmp_path / "site", tmp_path / "films"
    line = '<p class="film" data-film="{}">Film: <em>x</em></p>'
    pages = {"index.html": "graph", "ch09/index.html": "radix"}
    for folder in (site, site / "zh"):
        for page, name in pages.items():
            (folder / page).parent.mkdir(parents=True, exist_ok=True)
            (folder / page).write_text(f"<b>{line.format(name)}</b>")
    films.mkdir()
    assert embed.embed(site, films) == []
    for file in embed.files("radix"):
        (films / file).write_text(file)
    assert embed.embed(site, films) == ["radix"]
    assert (site / "index.html").read_text() == f"<b>{line.format('graph')}</b>"
    assert {f.name for f in (site / "films").iterdir()} == {
        *embed.files("radix")
    }
    for folder, up, default in (
        (site, "../", "en"),
        (site / "zh", "../../", "zh"),
    ):
        text = (folder / "ch09/index.html").read_text()
        assert text.startswith("<b><video") and text.endswith("</video></b>")
        sources = re.findall(r'(?:src|poster)="([^"]+)"', text)
        assert sorted(sources) == sorted(
            f"{up}films/{file}" for file in embed.files("radix")
        )
        assert re.findall(r'srclang="(..)"[^>]* default', text) == [default]


@WHOLE
def test_each_film_stands_on_one_page_of_each_language():
    for language in narration.LANGUAGES:
        texts = [p.read_text() for p in (ROOT / "docs" / language).glob("*.md")]
        shown = re.findall(r"<!-- film: (\w+) -->", "".join(texts))
        assert sorted(shown) == sorted(NAMES)


@WHOLE
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.slow] * (name in ("life", "parallel"))
        )
        for name in NAMES
    ],
)
def test_the_events_are_those_of_the_engine(name):
    assert (EVENTS / f"{name}.json").read_text() == recorders.record(name)
