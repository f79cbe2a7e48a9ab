"""What the repository may hold: small files, nothing of one machine."""

import re
import subprocess

import pytest

from tools.steplib.book import ROOT

MIB = 1 << 20
THIS = "tests/test_repository.py"
# Paths that exist on one machine only, and hosts of package registries: which one is
# used is for the reader's own pip settings to say.
FORBIDDEN = {
    "an absolute path of one machine": re.compile(
        r"(?<![\w.$}/-])/(?:home|root|work|Users|tmp)/\w"
    ),
    "the host of a package registry": re.compile(
        r"pypi\.org|pythonhosted|download\.pytorch\.org|registry\.npmjs|"
        r"(?:index-url|find-links)[= ]\S*//",
        re.IGNORECASE,
    ),
}


@pytest.fixture(scope="module")
def tracked():
    """Tracked path -> bytes of the file as it is now."""
    command = ["git", "ls-files", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("no git repository here")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return {
        p.relative_to(ROOT).as_posix(): p.read_bytes()
        for p in paths
        if p.exists()
    }


def findings(name: str, text: str) -> list[str]:
    lines = enumerate(text.split("\n"), 1)
    return [
        f"{name}:{number}: {what}: {line.strip()[:100]}"
        for number, line in lines
        for what, pattern in FORBIDDEN.items()
        if pattern.search(line)
    ]


def test_files_are_small(tracked):
    assert [name for name, data in tracked.items() if len(data) > MIB] == []
    assert sum(map(len, tracked.values())) < 15 * MIB


def test_nothing_of_one_machine_is_named(tracked):
    texts = {
        n: d.decode(errors="replace") for n, d in tracked.items() if n != THIS
    }
    assert [
        line for n, text in texts.items() for line in findings(n, text)
    ] == []


def test_texts_end_in_one_newline_and_are_utf8(tracked):
    suffixes = (".py", ".md", ".toml", ".yml", ".txt", ".css", "Makefile")
    for name, data in tracked.items():
        if name.endswith(suffixes) and data:
            assert data.decode().endswith("\n"), name
            assert b"\r" not in data, name


@pytest.mark.parametrize(
    "text",
    [
        "see /home/someone/x",
        "cd /tmp/build",
        "https://pypi.org/x",
        "--index-url http://h",
    ],
)
def test_a_planted_word_is_found(text):
    assert findings("x.md", text)


@pytest.mark.parametrize(
    "text", ["a/tmp/b", "$OUT/tmp/x", "https://github.com/x/work/y"]
)
def test_other_paths_are_not(text):
    assert not findings("x.md", text)
