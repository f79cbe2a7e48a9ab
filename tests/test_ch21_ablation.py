"""Every part of the engine off in turn: other times, the same tokens."""

import json

import pytest
from typer.testing import CliRunner

from minisgl.benchmark.__main__ import app
from minisgl.benchmark.ablation import (
    NOTHING,
    PARTS,
    Outcome,
    measure_ablation,
)
from minisgl.benchmark.subject import Run, Subject
from minisgl.benchmark.workload import Request, Workload
from tests.parity import assert_parity, model_under_test, prompts, reference

SETTINGS = {
    "max_running_req": 3,
    "page_size": 4,
    "num_page_override": 512,
    "max_extend_tokens": 24,
}
WORK = Workload(9, 4, 12, shared=16, long=60)
HERE = [part for part in PARTS if not part.only_gpu]


@pytest.fixture(scope="module")
def tiny() -> Subject:
    folder = str(model_under_test("qwen3-tiny"))
    return Subject(folder, False, "float32", "cpu", SETTINGS)


@pytest.fixture(scope="module")
def whole(tiny) -> Run:
    with tiny.engine() as llm:
        return llm.run(WORK.draw(500), 0.0)


@pytest.mark.parity
@pytest.mark.parametrize("part", [None, *HERE], ids=lambda p: p and p.name)
def test_without_any_part_the_tokens_are_those_of_transformers(tiny, part):
    shared = prompts(tiny.folder)[0]
    asked = [
        Request(shared + ids, 6 + n)
        for n, ids in enumerate(prompts(tiny.folder))
    ]
    with tiny.engine(**part.off if part else {}) as llm:
        answers = llm.run(asked, 0.0).answers
    for request, ids in zip(asked, answers, strict=True):
        assert_parity(
            ids, reference(tiny.folder, request.prompt, request.output)
        )


def test_what_is_off_is_off(tiny, whole):
    runs = {}
    for part in HERE:
        with tiny.engine(**part.off) as llm:
            runs[part.name] = llm.run(WORK.draw(500), 0.0)
    assert 0 < whole.hit_rate < 1
    assert runs["radix cache"].hit_rate == 0
    assert runs["overlap"].hit_rate > 0
    # A long prompt in one step instead of several.
    assert len(runs["chunked prefill"].batches) < len(whole.batches)
    # What is shared ends inside of a page only if pages have several tokens.
    assert runs["pages of several tokens"].hit_rate >= whole.hit_rate


def test_the_parts_are_those_of_the_book():
    assert {part.name: part.off for part in PARTS} == {
        "radix cache": {"cache_type": "naive"},
        "chunked prefill": {"max_extend_tokens": 2**30},
        "overlap": {"overlap": False},
        "CUDA graph": {"cuda_graph_max_bs": 0},
        "GPU attention": {"attention_backend": "torch"},
        "pages of several tokens": {"page_size": 1},
    }
    assert {p.name for p in PARTS} - {p.name for p in HERE} == {
        "CUDA graph",
        "GPU attention",
    }


def test_an_outcome_counts_what_is_equal():
    whole, other = Outcome(), Outcome()
    batches = [(0.0, [1]), (0.5, [1]), (0.6, [1])]
    for seconds in (1.0, 2.0, 4.0):
        whole.add(Run(seconds, [[1, 2], [3, 4]], [], 0.5), [[1, 2], [3, 4]])
        run = Run(2 * seconds, [[1, 2], [3, 5]], batches, 0.25)
        other.add(run, [[1, 2], [3, 4]])
    row = other.row("x", whole)
    assert row["gap p99 ms"] == pytest.approx(500, abs=5)
    del row["gap p99 ms"]
    assert row == {
        "without": "x",
        "tokens/s": 1.0,
        "of all": "0.50 x",
        "hit rate": "25%",
        "equal answers": "3 of 6",
    }


@pytest.mark.parity
def test_the_table_has_every_part_and_equal_answers(tiny):
    said: list[str] = []
    report = measure_ablation(tiny, WORK, 2, said.append)
    rows = {row["without"]: row for row in report.rows}
    assert list(rows) == [NOTHING, *(part.name for part in PARTS)]
    for part in PARTS:
        row = rows[part.name]
        if part.only_gpu:
            assert row == {"without": part.name, "tokens/s": part.only_gpu}
        else:
            assert row["equal answers"] == "18 of 18"
            assert row["tokens/s"] > 0
    assert rows[NOTHING]["of all"] == "1.00 x"
    assert rows["radix cache"]["hit rate"] == "0%"
    assert len(said) == 2 * (1 + len(HERE))
    assert report.columns == list(rows[NOTHING])
    assert report.setup["max_extend_tokens"] == 24


def test_every_variant_is_compared_with_the_whole_engine(tiny, monkeypatch):
    def run(subject, work, number, changes):
        # Without overlap one of two answers ends in another token.
        last = 9 if changes == {"overlap": False} else 2
        return Run(1.0 + number, [[1], [1, last]])

    monkeypatch.setattr("minisgl.benchmark.ablation._run", run)
    report = measure_ablation(tiny, WORK, 3, lambda text: None)
    rows = {row["without"]: row.get("equal answers") for row in report.rows}
    assert rows.pop("overlap") == "3 of 6"
    assert {value for value in rows.values() if value} == {"6 of 6"}


def test_the_command(tmp_path):
    path = tmp_path / "a.json"
    words = ["ablation", "--shape", "tiny", "--device", "cpu", "--rounds", "1"]
    words += ["--dtype", "float32", "--workload", "cpu", "--requests", "3"]
    words += ["--shortest", "2", "--longest", "6", "--shared", "8"]
    words += ["--long", "10", "--set", "num_page_override=512"]
    done = CliRunner().invoke(app, [*words, "--out", str(path)])
    assert done.exit_code == 0, done.output
    found = json.loads(path.read_text())
    equal = [row.get("equal answers") for row in found["rows"]]
    assert equal == ["3 of 3"] * 4 + [None, None, "3 of 3"]
    assert found["setup"]["page_size"] == 16
    assert found["setup"]["max_running_req"] == 1
    assert found["setup"]["max_extend_tokens"] == 128
