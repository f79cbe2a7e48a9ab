"""Twins: what waiting saves, who need not wait, and that nobody waits for ever."""

import random

import pytest
import torch

from minisgl.scheduler.twins import TwinsWait, shared_len
from tests.driver import Driver
from tests.parity import model_under_test, random_prompts

FOLDER = model_under_test("qwen3-tiny")
BASE, TAILS = random_prompts(0, 1, 48, 48)[0], random_prompts(1, 8, 4, 9)


def start(page_size=4, least_gain=8, **settings):
    driver = Driver(FOLDER, page_size=page_size, **settings)
    scheduler = driver.scheduler
    scheduler.prefill_manager = TwinsWait(
        scheduler.cache_manager,
        scheduler.table_manager,
        scheduler.decode_manager,
        least_gain=least_gain,
    )
    return driver


def submit(driver, *prompts, max_tokens=3):
    for uid, prompt in enumerate(prompts, len(driver.prompts)):
        driver.submit(uid, prompt, max_tokens)


def computed(driver):
    """Prompt tokens of each prefill step, by uid."""
    return [step.tokens for step in driver.prefills()]


@pytest.mark.parametrize(
    ("one", "other", "page_size", "shared"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4, 5], 1, 4),
        ([1, 2, 3, 4, 5], [1, 2, 3, 4], 1, 3),
        ([1, 2, 3, 4], [1, 2, 3, 4], 1, 3),
        ([1, 2, 9, 4], [1, 2, 3, 4], 1, 2),
        ([1, 2, 3, 4], [1, 2, 3, 9], 2, 2),
        ([9, 2, 3], [1, 2, 3], 1, 0),
        ([1, 2, 3], [1], 1, 0),
    ],
)
def test_what_two_prompts_share(one, other, page_size, shared):
    one, other = (torch.tensor(x, dtype=torch.int32) for x in (one, other))
    assert shared_len(one, other, page_size) == shared


def test_twins_find_the_prefix_that_the_first_one_computed():
    driver = start()
    submit(driver, *(BASE + tail for tail in TAILS[:4]))
    driver.run()
    first, second = computed(driver)
    assert first == {0: 48 + len(TAILS[0])}
    assert second == {uid: len(TAILS[uid]) for uid in (1, 2, 3)}
    driver.assert_parity(length=3)
    driver.assert_every_page()


def test_strangers_do_not_wait():
    driver = start()
    submit(driver, BASE, *TAILS[:3])
    driver.run()
    assert [sorted(tokens) for tokens in computed(driver)] == [[0, 1, 2, 3]]


def test_a_stranger_behind_twins_goes_at_once():
    driver = start()
    submit(driver, BASE + TAILS[0], BASE + TAILS[1], TAILS[2])
    driver.run()
    assert [sorted(tokens) for tokens in computed(driver)] == [[0, 2], [1]]


@pytest.mark.parametrize(("least_gain", "steps"), [(48, 2), (49, 1)])
def test_a_small_gain_is_not_worth_a_step(least_gain, steps):
    driver = start(least_gain=least_gain)
    submit(driver, BASE + TAILS[0], BASE + TAILS[1])
    driver.run()
    assert len(computed(driver)) == steps


def test_what_the_cache_knows_already_is_no_gain():
    driver = start()
    submit(driver, [*BASE, 1])
    driver.run()
    submit(driver, BASE + TAILS[0], BASE + TAILS[1])
    driver.run()
    assert computed(driver)[1:] == [{1: len(TAILS[0]), 2: len(TAILS[1])}]


def test_a_chain_waits_for_one_step_only():
    """b waits for a, and c, which shares most with b, waits for a as well."""
    driver = start()
    short, middle = BASE[:24], BASE
    submit(driver, [*short, 1], [*middle, 2], [*middle, 3])
    driver.run()
    assert [sorted(t) for t in computed(driver)] == [[0], [1], [2]]
    assert [sum(t.values()) for t in computed(driver)] == [25, 25, 1]


def test_those_that_wait_keep_their_place():
    driver = start(max_running_req=1)
    submit(driver, BASE + TAILS[0], BASE + TAILS[1], TAILS[2])
    driver.run()
    assert [uid for tokens in computed(driver) for uid in tokens] == [0, 1, 2]


def test_nobody_waits_for_ever():
    rng = random.Random(0)
    driver = start(pages=64, max_running_req=3)
    for uid in range(40):
        cut, tail = rng.randint(0, 48), rng.choice(TAILS)
        driver.submit(uid, BASE[:cut] + tail, rng.randint(1, 4))
        driver.step()
    driver.run()
    assert sorted(driver.ended) == [*range(40)]
    driver.assert_every_page()
