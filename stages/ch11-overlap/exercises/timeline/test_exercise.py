"""The time line: spans that fit together, and how much of the host's work is hidden."""

import random
from itertools import count, pairwise

import pytest

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from minisgl.llm.timeline import Span, TimedLLM, hidden_time
from tests.parity import model_under_test, prompts

FOLDER = str(model_under_test("qwen3-tiny"))
PROMPTS = prompts(FOLDER)[:4]
PARAMS = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (3, 6, 6, 9)]
SETTINGS = {"dtype": "float32", "device": "cpu", "num_page_override": 512}


def span(start, end):
    return Span("x", start, end)


@pytest.mark.parametrize(
    ("work", "flights", "seconds"),
    [
        ([span(0, 4)], [span(1, 3)], 2),
        ([span(1, 3)], [span(0, 4)], 2),
        ([span(0, 2), span(4, 6)], [span(1, 5)], 2),
        ([span(0, 9)], [span(1, 4), span(3, 6)], 5),
        ([span(0, 9)], [span(3, 6), span(1, 8)], 7),
        ([span(0, 1)], [span(1, 2)], 0),
        ([], [span(0, 1)], 0),
        ([span(0, 1)], [], 0),
    ],
)
def test_hidden_time(work, flights, seconds):
    assert hidden_time(work, flights) == seconds


def test_hidden_time_of_any_spans():
    rng = random.Random(0)
    for _ in range(300):
        marks = sorted(rng.sample(range(60), 2 * rng.randint(1, 5)))
        work = [
            span(a, b) for a, b in zip(marks[::2], marks[1::2], strict=True)
        ]
        flights = []
        for _ in range(rng.randint(0, 6)):
            start = rng.randint(0, 50)
            flights.append(span(start, start + rng.randint(1, 12)))
        inside = sum(
            any(w.start <= t < w.end for w in work)
            and any(f.start <= t < f.end for f in flights)
            for t in range(70)
        )
        assert hidden_time(work, flights) == inside


def generate(overlap):
    """Answers of a timed LLM whose clock moves by 1 when it is read."""
    ticks = count()
    llm = TimedLLM(
        FOLDER, clock=lambda: float(next(ticks)), overlap=overlap, **SETTINGS
    )
    return llm, llm.generate(PROMPTS, PARAMS, progress=False)


@pytest.mark.parametrize("overlap", [True, False])
def test_the_answers_are_the_same(overlap):
    plain = LLM(FOLDER, overlap=overlap, **SETTINGS)
    expected = plain.generate(PROMPTS, PARAMS, progress=False)
    assert generate(overlap)[1] == expected


@pytest.mark.parametrize("overlap", [True, False])
def test_every_batch_is_launched_flies_and_is_dealt_with(overlap):
    llm, _ = generate(overlap)
    names = [one.name for one in llm.work]
    batches = len(llm.flights)
    assert batches >= 9
    assert names.count("launch") == names.count("process") == batches
    assert all(one.start < one.end for one in [*llm.work, *llm.flights])
    assert all(a.end < b.start for a, b in pairwise(llm.work))
    launches = [one.end for one in llm.work if one.name == "launch"]
    processes = [one.start for one in llm.work if one.name == "process"]
    flights = [(one.start, one.end) for one in llm.flights]
    assert flights == [*zip(launches, processes, strict=True)]


def test_one_after_the_other_hides_nothing():
    llm, _ = generate(overlap=False)
    names = [one.name for one in llm.work]
    assert names == ["launch", "process"] * len(llm.flights)
    assert llm.hidden_share() == 0.0


def test_overlap_hides_all_but_the_last_batch():
    llm, _ = generate(overlap=True)
    names = [one.name for one in llm.work]
    inner = ["launch", "process"] * (len(llm.flights) - 1)
    assert names == ["launch", *inner, "process"]
    batches = len(llm.flights)
    assert llm.hidden_share() == (batches - 1) / batches


def test_a_fault_does_not_lose_the_order():
    llm, answers = generate(overlap=True)
    llm.work.clear()
    llm.flights.clear()
    again = llm.generate(PROMPTS, PARAMS, progress=False)
    assert [a["token_ids"] for a in again] == [a["token_ids"] for a in answers]
    assert all(one.start < one.end for one in llm.flights)
