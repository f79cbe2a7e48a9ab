"""Fair chunks: the split, who waits how long, and promises that are kept."""

import random
from dataclasses import replace

import pytest

from minisgl.scheduler.fair import FairPrefill, share_out
from minisgl.scheduler.prefill import PrefillManager
from tests.driver import Driver
from tests.parity import model_under_test, random_prompts

FOLDER = model_under_test("qwen3-tiny")


def start(budget=8, kind=FairPrefill, **settings):
    driver = Driver(FOLDER, max_extend_tokens=budget, **settings)
    scheduler = driver.scheduler
    scheduler.prefill_manager = kind(
        scheduler.cache_manager,
        scheduler.table_manager,
        scheduler.decode_manager,
        prefills_in_a_row=scheduler.config.prefills_in_a_row,
    )
    return driver


def submit(driver, *lengths, max_tokens=2):
    for seed, length in enumerate(lengths, len(driver.prompts)):
        prompt = random_prompts(seed, 1, length, length)[0]
        driver.submit(seed, prompt, max_tokens)


@pytest.mark.parametrize(
    ("budget", "wants", "shares"),
    [
        (8, [100, 100], [4, 4]),
        (8, [2, 100], [2, 6]),
        (9, [1, 2, 100, 100], [1, 2, 3, 3]),
        (8, [100, 100, 100], [3, 3, 2]),
        (2, [5, 5, 5], [1, 1, 0]),
        (100, [3, 4], [3, 4]),
        (5, [], []),
        (0, [3], [0]),
    ],
)
def test_the_split(budget, wants, shares):
    assert share_out(budget, wants) == shares


def test_any_split_is_fair():
    rng = random.Random(0)
    for _ in range(500):
        wants = [rng.randint(1, 20) for _ in range(rng.randint(1, 7))]
        budget = rng.randint(0, 60)
        shares = share_out(budget, wants)
        assert sum(shares) == min(budget, sum(wants))
        pairs = [*zip(shares, wants, strict=True)]
        assert all(0 <= share <= want for share, want in pairs)
        unmet = [share for share, want in pairs if share < want]
        assert unmet == sorted(unmet, reverse=True)
        if unmet:
            assert max(shares) <= max(unmet) + 1
            assert max(unmet) - min(unmet) <= 1


def first_tokens(driver):
    """The step in which each request's prompt was done."""
    found = {}
    for number, step in enumerate(driver.steps, 1):
        for uid in step.tokens:
            found[uid] = number if step.phase == "prefill" else found[uid]
    return found


def test_a_short_prompt_does_not_wait_for_a_long_one():
    ends = {}
    for kind in (FairPrefill, PrefillManager):
        driver = start(kind=kind)
        submit(driver, 40, 6)
        driver.run()
        ends[kind] = first_tokens(driver)
    assert ends[FairPrefill] == {1: 2, 0: 7}  # a decode step in between
    assert ends[PrefillManager] == {0: 5, 1: 7}


def test_chunks_of_all_prompts_fill_the_budget():
    driver = start(budget=9)
    submit(driver, 4, 30, 30)
    driver.step()
    driver.step()
    assert [step.tokens for step in driver.steps][:1] == [{0: 3, 1: 3, 2: 3}]
    assert [step.tokens for step in driver.steps][1] == {0: 1, 1: 4, 2: 4}
    driver.run()
    assert max(sum(s.tokens.values()) for s in driver.prefills()) == 9


def set_budget(driver, tokens):
    config = replace(driver.scheduler.config, max_extend_tokens=tokens)
    driver.scheduler.config = config


def test_a_known_prefix_is_not_wanted_again():
    driver = start(budget=100)
    prompt = random_prompts(5, 1, 24, 24)[0]
    driver.submit(0, prompt, 1)
    driver.run()
    set_budget(driver, 8)
    driver.submit(1, [*prompt, 1, 2], 1)
    driver.submit(2, random_prompts(6, 1, 20, 20)[0], 1)
    driver.step()
    assert driver.steps[-1].tokens == {1: 2, 2: 6}


def assert_promises(driver):
    """What was promised to those who run or have begun is there."""
    scheduler = driver.scheduler
    waiting = scheduler.prefill_manager.pending_list
    promised = sum(map(scheduler.prefill_manager._promised, waiting))
    promised += scheduler.decode_manager.inflight_tokens
    assert promised <= scheduler.cache_manager.available_size


def test_a_promise_counts_in_a_step_without_a_share():
    driver = start(budget=2, pages=44)
    submit(driver, 20, 20)
    driver.step()
    assert driver.steps[-1].tokens == {0: 1, 1: 1}
    set_budget(driver, 1)  # for 0 alone, though 1 has begun as well
    submit(driver, 10)
    while not driver.idle:
        driver.step()
        assert_promises(driver)
    admitted = [step.tokens for step in driver.prefills() if 2 in step.tokens]
    assert sum(tokens[2] for tokens in admitted) == 10
    driver.assert_every_page()


def test_who_does_not_fit_is_not_passed():
    driver = start(budget=100, pages=40)
    submit(driver, 20, max_tokens=8)
    driver.step()
    submit(driver, 30, 3)
    driver.step()  # a decode comes in between
    driver.step()
    waiting = driver.scheduler.prefill_manager.pending_list
    assert [req.uid for req in waiting] == [1, 2]
    driver.run()
    assert len(driver.ended) == 3


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_crowd_in_a_tight_pool(page_size):
    rng = random.Random(page_size)
    driver = start(
        budget=5,
        pages=100 // page_size,
        page_size=page_size,
        max_running_req=6,
        prefills_in_a_row=2,
    )
    for uid in range(25):
        submit(driver, rng.randint(1, 30), max_tokens=rng.randint(1, 8))
        driver.step()
        if uid == 12:
            driver.abort(11)
        assert_promises(driver)
    driver.run()
    for uid in set(driver.ended) - {11}:
        driver.assert_parity(uid)
    assert len(driver.ended) >= 24
    driver.assert_every_page()
