"""The next turn computes its question only, and is never wrong."""

import pytest

from minisgl.scheduler import scheduler as scheduler_file
from minisgl.scheduler.answer_states import AnswerCacheManager
from tests.driver import Driver, solo
from tests.parity import model_under_test
from tests.prompts import random_prompt

FOLDER = model_under_test("qwen3.5-tiny")


@pytest.fixture
def drive(monkeypatch):
    monkeypatch.setattr(scheduler_file, "CacheManager", AnswerCacheManager)

    def make(**settings):
        return Driver(FOLDER, **({"overlap": True} | settings))

    return make


def ask(driver, uid, ids, max_tokens, **settings):
    """Run one request alone; returns the tokens of its prompt it computed."""
    driver.submit(uid, ids, max_tokens, **settings)
    driver.run()
    return sum(step.tokens.get(uid, 0) for step in driver.prefills())


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True])
def test_the_next_turn_computes_its_question(drive, overlap):
    driver = drive(overlap=overlap)
    ids, question = random_prompt(1, 30), random_prompt(2, 9)
    ask(driver, 0, ids, 12)
    # All but the last token, which nobody has put into the model yet.
    assert ask(driver, 1, ids + driver.answers[0] + question, 12) == 10
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True])
def test_an_end_token_that_was_in_flight(drive, overlap):
    ids = random_prompt(3, 30)
    expected = solo(FOLDER, ids, 12).ids
    driver = drive(overlap=overlap, ends=[expected[9]])
    ask(driver, 0, ids, 30, ignore_eos=False)
    turn = ids + driver.answers[0] + random_prompt(4, 9)
    computed = ask(driver, 1, turn, 12)
    at = expected.index(expected[9])
    # In flight the row went on; then only the prompt's own state is known.
    assert computed == (at + 1 + 9 + 1 if overlap else 10)
    driver.assert_parity(1)
    driver.assert_every_page()


@pytest.mark.parity
def test_the_tree_takes_whole_pages(drive):
    driver = drive(page_size=8, pages=256)
    taken, states = [], driver.scheduler.engine.attn_backend.linear.states
    take = states.take

    def noted(length, busy=()):
        taken.append(length)
        return take(length, busy)

    states.take = noted
    ids, question = random_prompt(5, 30), random_prompt(6, 9)
    ask(driver, 0, ids, 11)  # 40 tokens are computed: five pages
    assert ask(driver, 1, ids + driver.answers[0] + question, 5) == 10
    ask(driver, 2, random_prompt(7, 30), 12)
    assert all(length % 8 == 0 for length in taken)
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True])
def test_prompts_that_are_aborted_between_chunks(drive, overlap):
    driver = drive(overlap=overlap, max_extend_tokens=16)
    ids = random_prompt(8, 60)
    driver.submit(0, ids, 5)
    for _ in range(3):
        driver.step()
    driver.abort(0)
    driver.run()
    assert ask(driver, 1, ids, 12) < 60
    driver.assert_parity(1)
    driver.assert_every_page()


def test_without_a_place_nothing_is_saved(drive):
    driver = drive(max_running_req=1)
    states = driver.scheduler.engine.attn_backend.linear.states
    while states.take(1) is not None:
        pass
    ask(driver, 0, random_prompt(9, 20), 5)
    assert not driver.scheduler.cache_manager.prefix_cache._snapshots
