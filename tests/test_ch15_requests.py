"""Chapter 15: wishes of requests in a running scheduler, and what it says of itself."""

from itertools import product

import pytest
import torch
from transformers import GenerationConfig

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from minisgl.message import (
    AbortBackendMsg,
    StatusBackendMsg,
    StatusResultMsg,
)
from tests.driver import Driver, poison
from tests.edited import edited_reference
from tests.late_device import make_late
from tests.parity import (
    _load,
    assert_parity,
    model_under_test,
    prompts,
    reference,
)

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
SHORT, *OTHERS, LONG = sorted(PROMPTS, key=len)
LENGTH = 24
WISHES = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 2.0, "logit_bias": {"7": 4.0, "8": -2.5}},
    {"frequency_penalty": 1.1},
    {"presence_penalty": 2.0, "logit_bias": {"5": 3.0, "9": -100}},
    {"frequency_penalty": -0.4, "repetition_penalty": 1.2},
]


def start(*, late: bool = False, overlap: bool = True, **settings) -> Driver:
    driver = Driver(FOLDER, overlap=overlap, **settings)
    if late:
        driver.stream = make_late(driver.scheduler)
        driver._log_steps()
    return driver


def assert_as_asked(driver: Driver, uid: int, **wishes) -> None:
    params = SamplingParams(**wishes)
    answer, prompt = driver.answers[uid], driver.prompts[uid]
    expected = edited_reference(FOLDER, prompt, len(answer), params)
    assert_parity(answer, expected)


MATRIX = [
    (page, *rest)
    for page, rest in product(
        (1, 16),
        [(True, False, 8192), (True, True, 11), (False, False, 11)],
    )
]


@pytest.mark.parity
@pytest.mark.parametrize(("page", "overlap", "late", "budget"), MATRIX)
def test_parity_of_penalties_in_a_mixed_batch(page, overlap, late, budget):
    driver = start(
        overlap=overlap,
        late=late,
        page_size=page,
        pages=2048 // page,
        max_extend_tokens=budget,
    )
    # Twice: the second time the prompts come out of the prefix cache.
    for again in (0, 100):
        for i, prompt in enumerate(PROMPTS[: len(WISHES)]):
            driver.submit(again + 2 * i, prompt, LENGTH)
            driver.submit(again + 2 * i + 1, prompt, LENGTH, **WISHES[i])
        driver.run()
    for again in (0, 100):
        for i, wishes in enumerate(WISHES):
            driver.assert_parity(again + 2 * i, length=LENGTH)
            assert_as_asked(driver, again + 2 * i + 1, **wishes)
            assert len(driver.answers[again + 2 * i + 1]) == LENGTH
    driver.assert_every_page()


@pytest.mark.parametrize("overlap", [True, False])
def test_a_repetition_penalty_is_that_of_transformers(overlap):
    penalty = 1.5
    driver = start(overlap=overlap)
    driver.submit(1, LONG, LENGTH, repetition_penalty=penalty)
    driver.run()
    model, _ = _load(FOLDER)
    ids = torch.tensor([LONG])
    config = GenerationConfig(
        repetition_penalty=penalty, max_new_tokens=LENGTH, pad_token_id=0
    )
    with torch.inference_mode():
        theirs = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            eos_token_id=None,
            do_sample=False,
        )
    assert driver.answers[1] == theirs[0, len(LONG) :].tolist()
    assert driver.answers[1] != reference(FOLDER, LONG, LENGTH).ids


def test_c16_two_requests_of_one_batch_keep_their_own_wishes():
    driver = start()
    driver.submit(1, SHORT, 5, temperature=0.0)
    driver.submit(2, SHORT, 9, temperature=1.5, seed=3)
    driver.submit(3, SHORT, 7, frequency_penalty=2.0)
    driver.run()
    alone = start()
    alone.submit(2, SHORT, 9, temperature=1.5, seed=3)
    alone.run()
    driver.assert_parity(1, length=5)
    assert driver.answers[2] == alone.answers[2] and len(alone.answers[2]) == 9
    assert_as_asked(driver, 3, frequency_penalty=2.0)


def test_c13_a_seeded_answer_is_the_same_alone_and_beside_limits():
    wishes = {"temperature": 1.0, "seed": 42}
    alone = start()
    alone.submit(1, SHORT, LENGTH, **wishes)
    alone.run()
    driver = start()
    driver.submit(1, SHORT, LENGTH, **wishes)
    driver.submit(2, LONG, LENGTH, temperature=1.0, top_p=0.9)
    driver.submit(3, OTHERS[0], LENGTH, temperature=0.5, top_k=5, seed=1)
    driver.submit(4, OTHERS[1], LENGTH, presence_penalty=1.0)
    driver.submit(5, OTHERS[2], LENGTH)
    driver.run()
    assert driver.answers[1] == alone.answers[1]
    driver.assert_parity(5, length=LENGTH)


# Bias.


@pytest.mark.parametrize("overlap", [True, False])
def test_logit_bias_bans_and_forces(overlap):
    usual = reference(FOLDER, SHORT, 12).ids
    ban = {str(token): -100 for token in usual}
    force = {"77": 100}
    driver = start(overlap=overlap)
    driver.submit(1, SHORT, 12, logit_bias=ban)
    driver.submit(2, SHORT, 12)
    driver.submit(3, SHORT, 12, logit_bias=force)
    driver.submit(4, SHORT, 12, logit_bias=ban, temperature=3.0, seed=1)
    driver.run()
    assert not {*usual} & {*driver.answers[1]}
    assert not {*usual} & {*driver.answers[4]}
    assert_as_asked(driver, 1, logit_bias=ban)
    driver.assert_parity(2, length=12)
    assert driver.answers[3] == [77] * 12


@pytest.mark.parametrize(
    ("name", "value"),
    [("logit_bias", {"512": 1.0, "5": 1.0}), ("stop_token_ids", [5, 512])],
)
def test_c16_a_token_the_model_has_not_is_refused_by_name(name, value):
    driver = Driver(FOLDER)
    size = driver.scheduler.engine.sampler.vocab_size
    assert size == 512
    driver.submit(1, SHORT, 4, **{name: value})
    driver.submit(2, SHORT, 4)
    driver.run()
    assert driver.ended[1].finish_reason == "refused"
    assert driver.ended[1].error == (
        f"{name} must have tokens of the vocabulary of 512, got 512"
    )
    driver.assert_parity(2, length=4)


# The end.


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("ignore_eos", [True, False])
def test_stop_token_ids_end_a_request_even_if_end_tokens_are_ignored(
    overlap, ignore_eos
):
    ids = reference(FOLDER, SHORT, 40).ids
    n = next(i for i in range(6, 40) if ids[i] not in ids[:i])
    driver = start(overlap=overlap, ends=[ids[2]] if ignore_eos else [])
    stops = [511 if ids[n] != 511 else 510, ids[n]]
    wish = {"ignore_eos": ignore_eos, "stop_token_ids": stops}
    driver.submit(1, SHORT, 40, **wish)
    driver.submit(2, SHORT, 40)
    driver.submit(3, SHORT, n + 1, **wish)
    driver.run()
    assert driver.answers[1] == ids[: n + 1]
    assert driver.answers[2] == ids
    assert driver.answers[3] == ids[: n + 1]
    reasons = [driver.ended[uid].finish_reason for uid in (1, 2, 3)]
    assert reasons == ["stop", "length", "stop"]
    driver.assert_every_page()


# What the first reply says of the prompt.


def first_messages(driver: Driver) -> dict[int, list]:
    """All messages by request, once everything has run."""
    found: dict[int, list] = {}
    while not driver.idle:
        for msg in driver.step():
            found.setdefault(msg.uid, []).append(msg)
    return found


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("budget", [7, 8192])
@pytest.mark.parametrize("page", [1, 4])
def test_the_first_reply_has_the_tokens_of_the_prompt(overlap, budget, page):
    driver = start(overlap=overlap, max_extend_tokens=budget, page_size=page)
    prompt = LONG[:40]
    cases = {
        1: (prompt, 0),  # a miss
        2: ([*prompt[:20], 9, 8, 7], 20),  # a part
        3: (prompt, 39 // page * page),  # all but the last token
        4: ([*prompt, 3, 1, 4], 40),
        5: ([11, 12, 13], 0),
    }
    for uid, (ids, cached) in cases.items():
        driver.submit(uid, ids, 3)
        msgs = first_messages(driver)[uid]
        counts = [(msg.prompt_tokens, msg.cached_tokens) for msg in msgs]
        assert counts == [(len(ids), cached), (None, None), (None, None)]
    driver.assert_every_page()


def test_a_request_of_one_token_and_one_that_fails_at_once():
    driver = start()
    poison(driver, 2)
    driver.submit(1, SHORT, 1)
    driver.submit(2, SHORT, 5)
    msgs = first_messages(driver)
    assert [msg.prompt_tokens for msg in msgs[1]] == [len(SHORT)]
    assert msgs[1][0].finish_reason == "length"
    assert [msg.finish_reason for msg in msgs[2]] == ["error"]


# How the scheduler is.


def numbers(driver: Driver, uid: int = 900) -> dict[str, int]:
    """Ask in the next step, as a client would."""
    scheduler = driver.scheduler
    scheduler.inbox.append(StatusBackendMsg(uid))
    found = []
    send = scheduler.send_result

    def noted(reply):
        found.extend(m for m in reply if isinstance(m, StatusResultMsg))
        send([m for m in reply if not isinstance(m, StatusResultMsg)])

    scheduler.send_result = noted
    driver.step()
    scheduler.send_result = send
    (msg,) = found
    assert msg.uid == uid
    return msg.numbers


IDLE = {"running": 0, "waiting": 0, "aborted": 0, "finished": 0}


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("page", [1, 16])
def test_status_numbers_of_a_life(overlap, page):
    total = 512 // page
    driver = start(
        overlap=overlap, page_size=page, pages=total, max_running_req=2
    )
    pool = {"free_pages": total, "cached_pages": 0, "total_pages": total}
    assert numbers(driver) == IDLE | pool
    for uid in (1, 2, 3, 4):
        driver.submit(uid, PROMPTS[uid], 12)
    driver.step()
    driver.step()
    busy = numbers(driver)
    assert (busy["running"], busy["waiting"]) == (2, 2)
    assert busy["free_pages"] < total
    driver.abort(4)  # waits
    driver.abort(4)
    driver.abort(77)
    while 1 not in driver.ended:
        driver.step()
    driver.abort(3)
    driver.run()
    driver.submit(5, [600], 3)  # refused: neither finished nor aborted
    driver.run()
    idle = numbers(driver)
    assert idle["free_pages"] + idle["cached_pages"] == total
    assert idle["cached_pages"] > 0
    ends = {"aborted": 2, "finished": 2}
    assert {k: idle[k] for k in IDLE} == IDLE | ends
    driver.assert_every_page()


def test_an_abort_after_the_end_is_not_counted():
    driver = start()
    driver.submit(1, SHORT, 3)
    driver.run()
    driver.scheduler.inbox += [AbortBackendMsg(1)] * 2
    driver.run()
    found = numbers(driver)
    assert (found["aborted"], found["finished"]) == (0, 1)


def test_a_prompt_in_chunks_runs_from_its_first_chunk_on():
    driver = start(max_extend_tokens=5)
    driver.submit(1, LONG, 3)
    driver.submit(2, LONG, 3)
    driver.step()
    found = numbers(driver)
    assert (found["running"], found["waiting"]) == (1, 1)
    driver.run()


# Offline.


def test_offline_answers_have_logprobs_and_say_who_is_at_fault():
    llm = LLM(str(FOLDER), "float32", device="cpu", num_page_override=512)
    wishes = [
        SamplingParams(max_tokens=5, ignore_eos=True, logprobs=2),
        SamplingParams(max_tokens=5, ignore_eos=True),
        SamplingParams(max_tokens=5, logit_bias={"512": 1.0}),
        SamplingParams(max_tokens=5, logprobs=1),
    ]
    results = llm.generate([SHORT, SHORT, SHORT, [512]], wishes)
    asked, other, *refused = results
    assert_parity(asked["token_ids"], reference(FOLDER, SHORT, 5))
    assert len(asked["logprobs"]) == 5
    for token, found in zip(asked["token_ids"], asked["logprobs"], strict=True):
        assert found.top_ids[0] == token
        assert found.top_logprobs[0] == found.logprob > found.top_logprobs[1]
    assert other["token_ids"] == asked["token_ids"]
    assert [r["logprobs"] for r in (other, *refused)] == [None] * 3
    assert [r["finish_reason"] for r in refused] == ["refused"] * 2
    assert "logit_bias must" in refused[0]["error"]
