"""`make run`: the newest chapter that answers, and what happens without a model."""

import pytest

from tools import run
from tools.steplib.book import Book

MANIFEST = 'title = { en = "A", zh = "A" }\npart = 0\n'


def plant(root, mains):
    for number, text in enumerate(mains):
        folder = root / "stages" / f"ch{number:02d}-x"
        folder.mkdir(parents=True)
        (folder / "stage.toml").write_text(MANIFEST)
        if text is not None:
            (folder / "main.py").write_text(text)
    return Book.load(root)


ANSWERS = "def main(model: str, prompt: str = 'hi'): ..."
SHOWS = "def main(model: str): prompt = 'fixed'"


@pytest.mark.parametrize(
    ("mains", "expected"),
    [
        ([ANSWERS, ANSWERS, SHOWS], 1),
        ([ANSWERS, None], 0),
        ([SHOWS, "def main(*, prompt): ..."], 1),
    ],
)
def test_newest_is_the_last_main_that_takes_a_prompt(tmp_path, mains, expected):
    assert run.newest(plant(tmp_path, mains)).number == expected


def test_no_main_takes_a_prompt(tmp_path):
    assert run.newest(plant(tmp_path, [SHOWS])) is None


def test_missing_default_model_falls_back_in_one_line(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(run, "models_dir", lambda: tmp_path)
    assert run.usable("smollm2-135m") == "qwen3-tiny"
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "tools/models.py fetch smollm2-135m" in printed
    assert run.usable("qwen3-tiny") == "qwen3-tiny"
    assert capsys.readouterr().out == ""


def test_a_model_that_was_asked_for_is_not_replaced():
    with pytest.raises(SystemExit, match=r"known: .*qwen3-tiny"):
        run.usable("no-such-model")
