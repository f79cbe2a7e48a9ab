"""Chapter 15: the model's log-probabilities, beside whatever else is asked for."""

import pytest
import torch

from minisgl.core import Batch, SamplingParams
from minisgl.engine import Sampler
from minisgl.engine.logprobs import BatchLogprobs
from tests.driver import Driver, poison
from tests.edited import bare_logprobs
from tests.handmade import make_req
from tests.late_device import make_late
from tests.parity import model_under_test, prompts

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
SHORT, *OTHERS, LONG = sorted(PROMPTS, key=len)
CPU = torch.device("cpu")
LENGTH = 12


def start(*, late: bool = False, overlap: bool = True, **settings) -> Driver:
    driver = Driver(FOLDER, overlap=overlap, **settings)
    if late:
        driver.stream = make_late(driver.scheduler)
        driver._log_steps()
    return driver


def run(driver: Driver) -> dict[int, list]:
    """What each request's messages say of logprobs."""
    found: dict[int, list] = {uid: [] for uid in driver.prompts}
    while not driver.idle:
        for msg in driver.step():
            found[msg.uid].append(msg.logprobs)
    return found


def assert_right(driver: Driver, uid: int, found: list, count: int) -> None:
    """They are those of transformers, and the likeliest come in order."""
    answer = driver.answers[uid]
    expected = bare_logprobs(FOLDER, driver.prompts[uid], answer)
    assert len(found) == len(answer) == len(expected)
    for token, mine, theirs in zip(answer, found, expected, strict=True):
        assert mine.logprob == pytest.approx(float(theirs[token]), abs=1e-4)
        assert len(mine.top_ids) == len(mine.top_logprobs) == count
        assert mine.top_logprobs == sorted(mine.top_logprobs, reverse=True)
        top = theirs.topk(count).values.tolist()
        assert mine.top_logprobs == pytest.approx(top, abs=1e-4)
        at = theirs[mine.top_ids].tolist()
        assert mine.top_logprobs == pytest.approx(at, abs=1e-4)
        assert len({*mine.top_ids}) == count


@pytest.mark.parity
@pytest.mark.parametrize(
    ("overlap", "late", "budget"),
    [(True, False, 8192), (True, True, 9), (False, False, 9)],
)
def test_c17_parity_of_logprobs_before_temperature_and_penalties(
    overlap, late, budget
):
    driver = start(overlap=overlap, late=late, max_extend_tokens=budget)
    wishes = {
        1: {"logprobs": 0},
        2: {"logprobs": 20, "temperature": 2.0, "seed": 1},
        3: {},
        4: {"logprobs": 3, "frequency_penalty": 2.0, "presence_penalty": 2.0},
        5: {"logprobs": 5, "logit_bias": {"77": 100}},
        6: {"temperature": 1.0, "top_p": 0.9, "seed": 5},
        7: {"logprobs": 1, "temperature": 1.0, "top_k": 4, "seed": 2},
    }
    for uid, wish in wishes.items():
        driver.submit(uid, PROMPTS[uid], LENGTH, **wish)
    found = run(driver)
    for uid, wish in wishes.items():
        if (count := wish.get("logprobs")) is None:
            assert found[uid] == [None] * LENGTH
        else:
            assert_right(driver, uid, found[uid], count)
    driver.assert_parity(3, length=LENGTH)
    greedy = found[1][0]
    assert (greedy.top_ids, greedy.top_logprobs) == ([], [])
    # A ban or a force is not the model's opinion.
    assert driver.answers[5] == [77] * LENGTH
    assert all(each.logprob < -1 for each in found[5])
    driver.assert_every_page()


def test_c17_logprobs_do_not_change_what_is_said():
    with_them, without = start(), start()
    for driver, wish in ((with_them, {"logprobs": 2}), (without, {})):
        driver.submit(1, LONG, LENGTH, **wish)
        driver.submit(2, SHORT, LENGTH, temperature=1.0, seed=1, **wish)
        driver.submit(3, SHORT, LENGTH, frequency_penalty=1.0, **wish)
        driver.run()
    assert with_them.answers == without.answers


def test_c17_they_end_with_the_request():
    end = start()
    end.submit(1, SHORT, 30)
    end.run()
    ids = end.answers[1]
    n = next(i for i in range(4, 30) if ids[i] not in ids[:i])
    driver = start(ends=[ids[n]])
    driver.submit(1, SHORT, 30, ignore_eos=False, logprobs=1)
    driver.submit(2, LONG, 8, logprobs=1)
    poison(driver, 2, len(LONG) + 3)
    found = run(driver)
    assert_right(driver, 1, found[1], 1)
    assert len(found[1]) == n + 1, "the end token has one too"
    assert [each is None for each in found[2]] == [False] * 3 + [True]


# By hand.


def batch_of(*wanted: int | None) -> Batch:
    params = [SamplingParams(logprobs=count) for count in wanted]
    reqs = [make_req([0, 1], row, 4, p) for row, p in enumerate(params)]
    return Batch(reqs, "decode")


def test_nobody_asks():
    assert BatchLogprobs.of(batch_of(None, None), CPU) is None


def test_rows_get_what_they_asked_for_of_their_own():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 9, generator=rng) * 5
    batch = batch_of(2, None, 0, 20)
    found = BatchLogprobs.of(batch, CPU)
    found.record(logits, torch.tensor([3, 1, 4, 8], dtype=torch.int32))
    expected = torch.log_softmax(logits, -1)
    assert found.read(1) is None
    for row, token, count in ((0, 3, 2), (2, 4, 0), (3, 8, 9)):
        logprob, ids, values = found.read(row)
        assert logprob == pytest.approx(float(expected[row, token]), abs=1e-5)
        assert ids == expected[row].topk(count).indices.tolist()
        assert len(values) == count


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_large_logits_and_tokens_that_cannot_come(shift):
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]]) + shift
    found = BatchLogprobs.of(batch_of(3), CPU)
    found.record(logits, torch.tensor([1]))
    logprob, ids, values = found.read(0)
    expected = torch.log_softmax(torch.tensor([0.0, 1.0, 2.0]), -1).tolist()
    assert logprob == pytest.approx(expected[1], abs=1e-5)
    assert ids == [3, 1, 0]
    assert values == pytest.approx(expected[::-1], abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_widened_first(dtype):
    rng = torch.Generator().manual_seed(0)
    logits = (torch.randn(1, 5000, generator=rng) * 3).to(dtype)
    sampler = Sampler(CPU, 5000, 0)
    args = sampler.prepare(batch_of(2))
    token = int(sampler.sample(logits, args)[0])
    expected = torch.log_softmax(logits.double(), -1)[0]
    logprob, ids, _ = args.logprobs.read(0)
    assert logprob == pytest.approx(float(expected[token]), abs=1e-4)
    assert ids[0] == token


def test_a_failed_row_breaks_nothing():
    logits = torch.zeros(2, 8)
    logits[0] = torch.nan
    sampler = Sampler(CPU, 8, 0)
    args = sampler.prepare(batch_of(2, 2))
    assert sampler.sample(logits, args).tolist() == [-1, 0]
    logprob, _, _ = args.logprobs.read(1)
    assert logprob == pytest.approx(-2.0794415)


def test_one_copy_brings_them_to_the_host(monkeypatch):
    from minisgl.engine import logprobs

    shapes = []
    to_host = logprobs.to_host
    spy = lambda data: shapes.append(tuple(data.shape)) or to_host(data)  # noqa: E731
    monkeypatch.setattr(logprobs, "to_host", spy)
    sampler = Sampler(CPU, 64, 0)
    args = sampler.prepare(batch_of(2, None, 5))
    sampler.sample(torch.zeros(3, 64), args)
    assert shapes == [(2, 11)]
