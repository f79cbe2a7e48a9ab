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


@pytest.mark.parametrize(
    ("has_server", "prompt", "serves"),
    [(True, None, True), (True, "hi", False), (False, None, False)],
)
def test_it_serves_once_there_is_a_server(
    tmp_path, monkeypatch, has_server, prompt, serves
):
    """And answers a question before, or when one is asked."""

    class ABook:
        chapters = plant(tmp_path, [ANSWERS]).chapters
        paths = (run.LLM, *([run.SERVER] if has_server else []))

    started, answered = [], []
    monkeypatch.setattr(run.Book, "load", lambda: ABook)
    monkeypatch.setattr(run.os, "execv", lambda *args: started.append(args))
    monkeypatch.setattr(run.os, "chdir", lambda _: None)
    monkeypatch.setattr(run, "answer", lambda *args: answered.append(args))
    run.main(prompt=prompt, model="qwen3-tiny", port=4711)
    assert bool(started) == serves and bool(answered) != serves
    if serves:
        [(program, command)] = started
        assert command[:3] == [program, "-m", "minisgl"]
        assert command[-2:] == ["--port", "4711"]
        assert "qwen3-tiny" in command
    else:
        assert answered == [(prompt or run.QUESTION, "qwen3-tiny")]
