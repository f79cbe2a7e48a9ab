"""The audit: silent on a sound pool at every step, and loud on each kind of fault."""

import random

import pytest
import torch

from minisgl.scheduler.audit import audit, held_pages
from tests.driver import Driver
from tests.fakes.dict_cache import DictCache
from tests.parity import model_under_test, random_prompts

FOLDER = model_under_test("qwen3-tiny")


def start(page_size=4, shared=True, pages=64, **settings):
    driver = Driver(FOLDER, page_size=page_size, pages=pages, **settings)
    if shared:  # a prefix cache that remembers
        driver.scheduler.cache_manager.prefix_cache = DictCache(page_size)
    return driver


def parts(driver):
    running = driver.scheduler.decode_manager.running_reqs
    return driver.scheduler.cache_manager, [*running.values()]


def run_audit(driver):
    manager, reqs = parts(driver)
    audit(manager, reqs)


def running(page_size=4):
    """Two requests in the middle of their answers; the second reads a prefix."""
    driver = start(page_size)
    prompt = random_prompts(0, 1, 17, 17)[0]
    driver.submit(0, prompt, 8)
    driver.step()
    driver.submit(1, [*prompt[:12], 1, 2, 3], 8)
    for _ in range(3):
        driver.step()
    return driver


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_sound_pool_passes_at_every_step(page_size, shared):
    rng, driver = random.Random(page_size), start(page_size, shared)
    drawn = random_prompts(1, 12, 1, 30)
    for uid, prompt in enumerate(drawn):
        prompt = drawn[0][:16] + prompt if uid % 2 else prompt
        driver.submit(uid, prompt, rng.randint(1, 6))
    steps = 0
    while not driver.idle:
        driver.step()
        run_audit(driver)
        if steps == 4:
            driver.abort(
                rng.choice(list(driver.scheduler.decode_manager.running_reqs))
            )
        steps += 1
    assert steps > 5
    driver.assert_every_page()


def test_held_pages():
    manager, (first, second) = parts(running())
    assert second.cache_handle.cached_len == 12
    shared, own = held_pages(manager, second)
    table = manager.page_table
    assert shared == (table[second.table_idx, :12:4] // 4).tolist()
    assert len(own) == 2  # 17 tokens are computed: 12 read, 5 its own
    assert own == (table[second.table_idx, 12:20:4] // 4).tolist()
    assert not set(own) & set(held_pages(manager, first)[1])


def fault(change, match):
    driver = running()
    run_audit(driver)
    manager, reqs = parts(driver)
    change(manager, *reqs)
    with pytest.raises(RuntimeError, match=match):
        audit(manager, reqs)


def own_slots(manager, req):
    at = req.cache_handle.cached_len
    return manager.page_table[req.table_idx, at : at + 4]


def test_a_page_that_is_free_and_in_use():
    def change(manager, first, second):
        manager._free(own_slots(manager, second))

    fault(change, r"page \d+ belongs to the free list and to request 1")


def test_a_page_that_is_free_twice():
    def change(manager, first, second):
        pages = manager.free_pages.clone()
        pages[-1] = pages[0]
        manager.free_pages = pages

    fault(change, "belongs to the free list and to the free list")


def test_a_page_of_two_requests():
    def change(manager, first, second):
        own_slots(manager, first)[:] = own_slots(manager, second)

    fault(change, "belongs to request 0 and to request 1")


def test_a_lost_page():
    def change(manager, first, second):
        manager.free_pages = manager.free_pages[1:]

    fault(change, r"\d+ pages are neither")


def test_a_prefix_that_was_given_away():
    def change(manager, first, second):
        slots = manager.page_table[second.table_idx, :4]
        taken = manager._allocate(1)
        assert len(taken) == 1
        manager._free(slots)

    fault(change, r"page \d+, which request \d reads .* belongs to the free")


def test_a_request_that_was_forgotten():
    manager, (first, second) = parts(running())
    audit(manager, [first, second])
    with pytest.raises(RuntimeError, match="neither free nor"):
        audit(manager, [first])


def test_an_idle_pool():
    driver = start(shared=False)
    run_audit(driver)
    manager, _ = parts(driver)
    manager.free_pages = torch.cat([manager.free_pages, manager.free_pages[:1]])
    with pytest.raises(RuntimeError):
        run_audit(driver)
