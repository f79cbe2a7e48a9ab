"""The built book in a real browser: both languages, both schemes, phone and desk."""

import functools
import html.parser
import http.server
import os
import shutil
import subprocess
import sys
import threading
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

import pytest

from tools.steplib.book import ROOT, Book
from tools.steplib.pages import is_tag_tree
from tools.videos import embed
from tools.videos.narration import NAMES

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FFMPEG = shutil.which("ffmpeg")
PAGES = ["", "ch00-step0/", "ch09-radix-cache/", "ch11-overlap/"]
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        is_tag_tree(ROOT), reason="a tag holds part of the book"
    ),
    pytest.mark.skipif(
        not (BROWSER and DRIVER),
        reason="chromium or chromedriver is not installed",
    ),
]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def plant_films(folder):
    """Two seconds of a test picture for each film, if there is an ffmpeg."""
    sources = ["testsrc=d=2:s=320x180", "sine=d=2"]
    inputs = [part for name in sources for part in ("-f", "lavfi", "-i", name)]
    ffmpeg = ["ffmpeg", "-v", "error"]
    for name in NAMES if FFMPEG else ():
        mp4, jpg, *tracks = (folder / file for file in embed.files(name))
        subprocess.run(
            [*ffmpeg, *inputs, "-pix_fmt", "yuv420p", mp4], check=True
        )
        subprocess.run([*ffmpeg, "-i", mp4, "-frames:v", "1", jpg], check=True)
        for track in tracks:
            track.write_text("WEBVTT\n\n00:00:00.000 --> 00:00:02.000\nHello\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the book, built in both languages, with films."""
    folder = tmp_path_factory.mktemp("site")
    for config, dest in (
        ("mkdocs.yml", folder),
        ("mkdocs.zh.yml", folder / "zh"),
    ):
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        command += ["-f", config, "-d", str(dest)]
        env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
        subprocess.run(
            command, cwd=ROOT, env=env, check=True, capture_output=True
        )
    films = tmp_path_factory.mktemp("films")
    plant_films(films)
    embed.embed(folder, films)
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for flag in [*FLAGS, f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def open_page(browser, address, width, scheme):
    # Headless windows have a least width; the emulated screen has none.
    metrics = {
        "width": width,
        "height": 900,
        "deviceScaleFactor": 1,
        "mobile": False,
    }
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    browser.get("about:blank")
    # The scheme of the page before is remembered.
    origin = "http://" + urlsplit(address).netloc
    wipe = {"origin": origin, "storageTypes": "all"}
    browser.execute_cdp_cmd("Storage.clearDataForOrigin", wipe)
    browser.get_log("browser")
    browser.get(address)


def wait_for(browser, condition):
    """What the condition gives once it is true; the page's script may take a while."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 20).until(condition)


def errors(browser):
    return [e for e in browser.get_log("browser") if e["level"] == "SEVERE"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", ["", "zh/"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_whole_on_a_phone(site, browser, page, language, scheme):
    open_page(browser, urljoin(site, language + page), 390, scheme)
    assert not errors(browser)
    wanted = {"light": "default", "dark": "slate"}[scheme]
    script = "return document.body.getAttribute('data-md-color-scheme')"
    wait_for(browser, lambda b: b.execute_script(script) == wanted)
    assert (
        browser.execute_script("return document.documentElement.scrollWidth")
        <= 390
    )
    wide = browser.execute_script(
        "return [...document.querySelectorAll('pre, .highlight, table, img, video')]"
        ".filter(e => e.offsetParent && e.getBoundingClientRect().right > 391"
        " && !e.closest('.md-typeset__scrollwrap')).map(e => e.outerHTML.slice(0, 99))"
    )
    assert not wide
    broken = browser.execute_script(
        "return [...document.images].filter(i => i.complete && !i.naturalWidth)"
        ".map(i => i.src)"
    )
    assert not broken


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", ["", "zh/"])
def test_diagrams_are_seen(site, browser, language, scheme):
    open_page(browser, urljoin(site, f"{language}ch11-overlap/"), 390, scheme)
    dark = "return document.body.dataset.mdColorScheme == 'slate'"
    wait_for(browser, lambda b: b.execute_script(dark) == (scheme == "dark"))
    shown = browser.execute_script(
        "return [...document.querySelectorAll('img.diagram')].map(i => "
        "[i.naturalWidth, i.getBoundingClientRect().width, i.alt,"
        " getComputedStyle(i).filter])"
    )
    assert shown
    for natural, width, alt, turned in shown:
        assert natural == 440
        assert 300 < width <= 390
        assert len(alt) > 20
        assert (turned != "none") == (scheme == "dark")


@pytest.mark.skipif(not FFMPEG, reason="ffmpeg is not installed")
@pytest.mark.parametrize("language", ["", "zh/"])
def test_a_film_plays_with_the_subtitles_of_its_page(site, browser, language):
    open_page(
        browser, urljoin(site, f"{language}ch09-radix-cache/"), 390, "dark"
    )
    script = (
        "const v = document.querySelector('video'); v.muted = true; v.play()"
    )
    browser.execute_script(script)
    script = (
        "const v = document.querySelector('video'); return v.currentTime && "
        "[v.duration, v.videoWidth, [...v.textTracks].map(t => "
        "[t.language, t.mode, t.cues && t.cues.length])]"
    )
    length, width, tracks = wait_for(
        browser, lambda b: b.execute_script(script)
    )
    assert abs(length - 2) < 0.2 and width == 320
    shown = "zh" if language else "en"
    assert [t for t in tracks if t[1] == "showing"] == [[shown, "showing", 1]]
    assert not errors(browser)


@pytest.mark.parametrize("language", ["", "zh/"])
def test_search_finds_a_word_of_its_language(site, browser, language):
    from selenium.webdriver.common.by import By

    open_page(browser, urljoin(site, language), 1200, "light")
    field = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
    browser.execute_script("arguments[0].focus()", field)
    field.send_keys("页表" if language else "page table")
    results = ".md-search-result__item"
    assert wait_for(
        browser, lambda b: b.find_elements(By.CSS_SELECTOR, results)
    )


class _Links(html.parser.HTMLParser):
    """The links, images and anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.targets, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors.add(found.get("id"))
        names = {"a": "href", "link": "href"}.get(tag, "src"), "poster"
        self.targets += [found[name] for name in names if found.get(name)]


def test_no_link_is_broken(site):
    """Links, pictures and anchors of every page, in both languages."""
    known, broken = {}, []

    def fetch(address):
        if address not in known:
            try:
                with urlopen(address) as answer:
                    page = answer.headers.get_content_type() == "text/html"
                    known[address] = (
                        _Links(answer.read().decode()) if page else True
                    )
            except OSError:
                known[address] = None
        return known[address]

    todo = [site, urljoin(site, "zh/")]
    for address in todo:
        for target in fetch(address).targets:
            link, _, anchor = urljoin(address, target).partition("#")
            if urlsplit(link).netloc != urlsplit(site).netloc:
                continue
            found = fetch(link)
            missing = isinstance(found, _Links) and anchor not in {
                *found.anchors,
                "",
            }
            if found is None or missing:
                broken.append(f"{address}: {target}")
            if isinstance(found, _Links) and link not in todo:
                todo.append(link)
    assert not broken
    assert len(todo) > 2 * len(Book.load(ROOT).chapters)
