"""The radix cache under a scheduler: hits, full hits, duplicates, a tight pool.

Before ch10 the cache has no setting; `naive` patches the scheduler's CacheManager.
"""

import functools
import random

import numpy as np
import pytest
import torch

import minisgl.scheduler.scheduler as scheduler_module
from minisgl.scheduler.cache import CacheManager
from tests.driver import Driver, poison
from tests.parity import RandomParity, model_under_test

PAGES = pytest.mark.parametrize("page", [1, 4, 16])
PREFIXES = (0, 1, 17, 64)


@pytest.fixture(scope="module")
def folder():
    return model_under_test("qwen3-tiny")


def ids(seed, length):
    return np.random.default_rng([9, seed]).integers(0, 500, length).tolist()


@pytest.fixture
def naive(monkeypatch):
    """Schedulers made from now on remember nothing."""

    def switch():
        manager = functools.partial(CacheManager, type="naive")

        def forced(pages, page_size, table, *_):
            return manager(pages, page_size, table)

        monkeypatch.setattr(scheduler_module, "CacheManager", forced)

    return switch


def computed(driver):
    """Prompt tokens that the last prefill step computed, by uid."""
    return [*driver.prefills()][-1].tokens


def watch_evictions(driver):
    """Collects the slots of every eviction."""
    cache, seen = driver.scheduler.cache_manager.prefix_cache, []
    evict = cache.evict

    def logged(size):
        slots = evict(size)
        seen.append(slots.tolist())
        return slots

    cache.evict = logged
    return seen


def row(driver, uid, length):
    req = driver.scheduler.decode_manager.running_reqs[uid]
    return driver.scheduler.cache_manager.page_table[
        req.table_idx, :length
    ].tolist()


# -- hits --------------------------------------------------------------------------


@pytest.mark.parity
@PAGES
def test_a_second_question_computes_only_what_is_new(folder, page):
    driver = Driver(folder, page_size=page)
    shared = ids(0, 48)
    driver.submit(1, [*shared, *ids(1, 9)], 6)
    driver.run()
    driver.submit(2, [*shared, *ids(2, 9)], 6)
    driver.run()
    assert computed(driver) == {2: 9}
    driver.assert_parity(length=6)
    driver.assert_every_page()


@pytest.mark.parity
@PAGES
def test_the_next_turn_of_a_chat_finds_the_answer_too(folder, page):
    driver = Driver(folder, page_size=page)
    turn, known = ids(3, 20), 0
    for uid in range(3):
        driver.submit(uid, turn, 13)
        driver.run()
        assert computed(driver) == {uid: len(turn) - known}
        turn = [*turn, *driver.answers[uid]]
        # The last token of an answer was never computed.
        known = (len(turn) - 1) // page * page
        turn = [*turn, *ids(4 + uid, 5)]
    driver.assert_parity(length=13)
    driver.assert_every_page()


@pytest.mark.parity
@PAGES
@pytest.mark.parametrize("length", [32, 33, 47])
def test_c05_a_full_hit_computes_its_last_token(folder, page, length):
    driver = Driver(folder, page_size=page)
    prompt = ids(5, length)
    driver.submit(0, prompt, 10)
    driver.run()
    # All of the prompt is in the cache now, for the answer follows it.
    for uid in (1, 2):
        driver.submit(uid, prompt, 10)
        driver.run()
        assert computed(driver) == {uid: length - (length - 1) // page * page}
    driver.assert_parity(length=10)
    driver.assert_every_page()


@pytest.mark.parity
@PAGES
def test_c05_the_cache_changes_no_answer(folder, page, naive):
    base = ids(6, 64)
    asked = [
        [*base[:prefix], *ids(100 * prefix + i, 5 + 3 * i)]
        for prefix in PREFIXES
        for i in range(3)
    ]
    random.Random(page).shuffle(asked)
    answers, work = [], []
    for remembers in (True, False):
        if not remembers:
            naive()
        driver = Driver(folder, page_size=page, max_running_req=4)
        for uid, prompt in enumerate(asked):
            driver.submit(uid, prompt, 12)
            driver.step()
        answers.append(driver.run())
        work.append(
            sum(sum(step.tokens.values()) for step in driver.prefills())
        )
        driver.assert_parity(length=12)
        driver.assert_every_page()
    assert answers[0] == answers[1]
    assert work[0] < work[1] == sum(map(len, asked))


@pytest.mark.parity
@PAGES
def test_c05_a_full_hit_a_partial_hit_and_a_miss_in_one_batch(folder, page):
    driver = Driver(folder, page_size=page)
    prompt = ids(7, 64)
    driver.submit(0, prompt, 8)
    driver.run()
    driver.submit(1, prompt, 12)
    driver.submit(2, [*prompt[:32], *ids(8, 7)], 12)
    driver.submit(3, ids(9, 21), 12)
    driver.run()
    assert computed(driver) == {1: 64 - 63 // page * page, 2: 7, 3: 21}
    driver.assert_parity(0, length=8)
    driver.assert_parity(1, 2, 3, length=12)
    driver.assert_every_page()


# -- duplicates ---------------------------------------------------------------------


@pytest.mark.parity
@PAGES
def test_a_prefix_computed_twice_is_kept_once(folder, page):
    """Both miss, being in one batch; the second finds the first's in the tree."""
    driver = Driver(folder, page_size=page, pages=512)
    manager = driver.scheduler.cache_manager
    prompt, whole = ids(10, 40), 40 // page * page
    for uid in (1, 2):
        driver.submit(uid, prompt, 10)
    driver.step()
    assert computed(driver) == {1: 40, 2: 40}
    first, second = row(driver, 1, 40), row(driver, 2, 40)
    assert second[:whole] == first[:whole]
    assert not set(second[whole:]).intersection(first[whole:])
    # Each row has the shared pages, and pages of its own for the rest.
    own = 2 * (-(-40 // page) - whole // page)
    assert len(manager.free_pages) == 512 - whole // page - own
    assert manager.prefix_cache.size_info == (0, whole)
    free = {page_ * page for page_ in manager.free_pages.tolist()}
    assert not free.intersection(first + second)
    driver.run()
    driver.assert_parity(length=10)
    driver.assert_every_page()


@pytest.mark.parity
@PAGES
def test_answers_that_are_equal_are_kept_once(folder, page):
    driver = Driver(folder, page_size=page, pages=512)
    for uid in range(3):
        driver.submit(uid, ids(10, 17), 16)
    driver.run()
    kept = (17 + 16 - 1) // page * page
    assert driver.scheduler.cache_manager.prefix_cache.size_info == (kept, 0)
    driver.assert_parity(length=16)
    driver.assert_every_page()


@pytest.mark.parametrize("page", [1, 4])
def test_what_a_failed_request_computed_is_not_reused(folder, page):
    driver = Driver(folder, page_size=page)
    poison(driver, uid=1)
    prompt = ids(11, 30)
    driver.submit(0, prompt[:12], 1)
    driver.run()
    driver.submit(1, prompt, 8)
    driver.run()
    assert driver.ended[1].finish_reason == "error"
    driver.submit(2, prompt, 8)
    driver.run()
    assert computed(driver) == {2: 30 - 12 // page * page}
    driver.assert_parity(2, length=8)
    driver.assert_every_page()


# -- a pool that is too small ------------------------------------------------------


def fill(driver, page):
    """A pool of 32 pages, full: 20 pages of one prefix, then 12 of another.

    Returns the first prompt, and for both prompts the slots they are kept in.
    """
    cache, kept = driver.scheduler.cache_manager.prefix_cache, []
    prompts = ids(12, 20 * page), ids(13, 12 * page)
    for uid, prompt in enumerate(prompts):
        driver.submit(uid, prompt, 1)
        driver.run()
        key = cache._key_fn(torch.tensor(prompt, dtype=torch.int32))
        kept.append(cache.root_node.children[key].value.tolist())
    assert cache.size_info == (32 * page, 0)
    return prompts[0], *kept


@pytest.mark.parity
@pytest.mark.parametrize("page", [1, 4])
def test_c07_a_request_keeps_what_it_matched(folder, page):
    """It matches 10 pages of 20 and needs 12 more, none of which is free."""
    driver = Driver(folder, page_size=page, pages=32)
    prompt, first, second = fill(driver, page)
    mine, tail = first[: 10 * page], first[10 * page :]
    gone = watch_evictions(driver)
    driver.submit(2, [*prompt[: 10 * page], *ids(14, 5 * page)], 7 * page + 1)
    driver.step()
    assert computed(driver) == {2: 5 * page}
    while not driver.idle:
        assert row(driver, 2, 10 * page) == mine
        driver.step()
    # The rest of the older prefix goes, then the end of the other one.
    evicted = [slot for slots in gone for slot in slots]
    assert set(evicted[: 10 * page]) == set(tail)
    assert set(evicted[10 * page :]) == set(second[10 * page :])
    driver.assert_parity(2, length=7 * page + 1)
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("page", [1, 4])
def test_c07_what_fits_evicts_nothing(folder, page):
    driver = Driver(folder, page_size=page, pages=32)
    old = ids(12, 20 * page)
    driver.submit(0, old, 1)
    driver.run()
    gone = watch_evictions(driver)
    driver.submit(1, [*old[: 10 * page], *ids(15, 5 * page)], 7 * page)
    driver.run()
    assert computed(driver) == {1: 5 * page} and gone == []
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parametrize("page", [4, 16])
def test_c07_a_token_inside_a_half_filled_page_evicts_nothing(folder, page):
    driver = Driver(folder, page_size=page, pages=8)
    driver.submit(0, ids(16, 7 * page), 1)
    driver.run()
    gone = watch_evictions(driver)
    # One page for the prompt's tokens and the answer's; it is the last free one.
    driver.submit(1, ids(17, 2), page - 1)
    driver.run()
    assert gone == [] and len([*driver.decodes()]) == page - 2
    # One token more needs a second page. Nothing is free, so each costs one.
    driver.submit(2, ids(18, 2), page)
    driver.run()
    assert [len(slots) for slots in gone] == [page, page]
    driver.assert_every_page()


@pytest.mark.parity
@PAGES
def test_a_tight_pool_with_shared_prefixes(folder, page):
    """Admissions wait, prefixes come and go, and no answer changes."""
    driver = Driver(
        folder, page_size=page, pages=128 // page, max_running_req=3
    )
    gone, near = watch_evictions(driver), RandomParity()
    rng = random.Random(page)
    bases = [ids(20 + i, 40) for i in range(3)]
    for uid in range(14):
        prefix = rng.choice(bases)[: rng.choice((0, 5, 16, 40))]
        driver.submit(uid, [*prefix, *ids(40 + uid, rng.randint(1, 20))], 10)
    driver.run()
    assert len(gone) > 2
    driver.assert_parity(length=10, near=near)
    near.finish()
    driver.assert_every_page()
