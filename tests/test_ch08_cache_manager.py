"""Every page is free, cached, or held by one request, and comes back."""

import random
from types import SimpleNamespace

import pytest
import torch

from minisgl.kvcache import BasePrefixCache, create_prefix_cache
from minisgl.kvcache.naive_cache import NaivePrefixCache
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.utils import PendingReq
from tests.driver import REFUSED, Driver, poison
from tests.fakes.dict_cache import DictCache
from tests.handmade import make_req
from tests.parity import model_under_test, prompts
from tools.models import model_path

TINY = model_path("qwen3-tiny")
FIXED = prompts(
    "qwen3-tiny"
)  # of 1, 3, 7, 16, 17, 33, 50, 64, 77 and 100 tokens
CPU = torch.device("cpu")
ROWS, LENGTH = 4, 64


def make_manager(pages, page_size, cache=None):
    """A manager with the cache that remembers nothing, or with `cache`."""
    table = torch.full((ROWS, LENGTH), -1, dtype=torch.int32)
    manager = CacheManager(pages, page_size, table, "naive")
    if cache is not None:
        manager.prefix_cache = cache
    return manager


def admit(manager, ids, row, max_tokens=8):
    """What admission does: match, lock, and point the row at what is known."""
    req = make_req(ids, row, max_tokens)
    pending = PendingReq(row, req.input_ids, req.sampling_params)
    req.cache_handle = manager.match_req(pending).cuda_handle
    manager.lock(req.cache_handle)
    req.cached_len = req.cache_handle.cached_len
    slots = req.cache_handle.get_matched_indices()
    manager.page_table[row, : req.cached_len] = slots
    return req


def advance(manager, req, token=7):
    """A step: pages, counters, and the token that the host reads."""
    manager.allocate_paged([req])
    req.complete_one()
    req.append_host(torch.tensor([token], dtype=torch.int32))


def row_of(manager, req):
    return manager.page_table[req.table_idx, : req.cached_len].tolist()


def share(driver):
    """Give a scheduler a prefix cache that remembers, before ch09 has one."""
    size = driver.scheduler.config.page_size
    driver.scheduler.cache_manager.prefix_cache = DictCache(size)


# --- Pages without a prefix cache ---


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_all_pages_come_back_and_none_is_lent_twice(page_size):
    manager = make_manager(64 // page_size, page_size)
    reqs = [admit(manager, range(n), row) for row, n in enumerate([5, 16, 17])]
    manager.allocate_paged(reqs)
    lengths = [-(-n // page_size) * page_size for n in (5, 16, 17)]
    rows = [manager.page_table[row, :n] for row, n in enumerate(lengths)]
    slots = torch.cat(rows).tolist()
    assert len(set(slots)) == len(slots)
    assert set(slots) <= {*range(64)}
    assert manager.available_size == 64 - len(slots)
    assert (manager.page_table[0, lengths[0] :] == -1).all()
    for req in reqs:
        req.complete_one()
        manager.cache_req(req, finished=True)
    assert sorted(manager.free_pages.tolist()) == [*range(64 // page_size)]
    manager.check_integrity()


def test_the_last_page_is_filled_before_another_is_taken():
    manager = make_manager(8, 4)
    req = admit(manager, range(6), 0)
    left = []
    for _ in range(6):
        advance(manager, req)
        left.append(len(manager.free_pages))
    assert left == [6, 6, 6, 5, 5, 5]
    whole = [slot // 4 for slot in row_of(manager, req)]
    assert whole == [0] * 4 + [1] * 4 + [2] * 3


def test_pages_that_come_back_are_lent_again_last():
    manager = make_manager(3, 4)
    first, second = admit(manager, range(4), 0), admit(manager, range(8), 1)
    advance(manager, first)
    manager.cache_req(first, finished=True)
    manager.allocate_paged([second])
    assert manager.page_table[1, :8:4].tolist() == [4, 8]
    assert manager.free_pages.tolist() == [0]


def test_one_call_serves_all_rows_of_a_batch():
    manager = make_manager(16, 2)
    reqs = [admit(manager, range(3), 2), admit(manager, range(1), 0)]
    for req in reqs:
        advance(manager, req)
    reqs.append(admit(manager, range(5), 3))
    manager.allocate_paged(reqs)  # the first one has room in its last page
    assert [manager.page_table[row, :6].tolist() for row in (2, 0, 3)] == [
        [0, 1, 2, 3, -1, -1],
        [4, 5, -1, -1, -1, -1],
        [6, 7, 8, 9, 10, 11],
    ]
    assert len(manager.free_pages) == 16 - 6


def test_too_few_pages_are_an_error_that_takes_none():
    manager = make_manager(3, 4)
    with pytest.raises(RuntimeError):
        manager.allocate_paged([admit(manager, range(13), 0)])
    assert len(manager.free_pages) == 3
    advance(manager, admit(manager, range(12), 0))
    assert manager.available_size == 0


def test_freed_pages_return_together_at_the_end_of_a_region():
    manager = make_manager(8, 4)
    reqs = [admit(manager, range(8), row) for row in range(3)]
    for req in reqs:
        advance(manager, req)
    with manager.lazy_free_region():
        manager.cache_req(reqs[0], finished=True)
        manager.drop_req(reqs[1])
        assert len(manager.free_pages) == 2
    assert manager.free_pages.tolist() == [6, 7, 0, 1, 2, 3]
    with pytest.raises(KeyError), manager.lazy_free_region():
        manager.cache_req(reqs[2], finished=True)
        raise KeyError("the pages come back all the same")
    manager.check_integrity()


# --- Pages with a prefix cache that remembers ---


def test_a_prefix_is_shared_and_locked_while_it_is_in_use():
    cache = DictCache(4)
    manager = make_manager(16, 4, cache)
    first = admit(manager, range(10), 0)
    advance(manager, first)
    manager.cache_req(first, finished=False)
    assert first.cache_handle.cached_len == 8, "whole pages of the prompt"
    assert cache.size_info == (0, 8)
    assert cache.size_info.total_size == 8
    assert manager.available_size == 13 * 4
    second = admit(manager, [*range(8), 50, 51, 52], 1)
    assert second.cached_len == 8
    advance(manager, second)
    assert row_of(manager, second)[:8] == row_of(manager, first)[:8]
    assert row_of(manager, second)[8] // 4 == 3, "a page of its own"
    manager.cache_req(first, finished=True)
    assert cache.size_info == (0, 8), "the second one still holds it"
    manager.cache_req(second, finished=True)
    assert cache.size_info == (8, 0)
    assert manager.available_size == 16 * 4
    manager.check_integrity()


def test_what_two_computed_at_once_is_kept_once():
    cache = DictCache(4)
    manager = make_manager(16, 4, cache)
    twins = [admit(manager, range(11), row) for row in range(2)]
    for req in twins:
        advance(manager, req)
    rows = [row_of(manager, req) for req in twins]
    assert not {*rows[0]} & {*rows[1]}
    manager.cache_req(twins[0], finished=False)
    manager.cache_req(twins[1], finished=False)
    assert row_of(manager, twins[0]) == rows[0]
    # The second row is pointed at the kept pages; past them it has its own.
    assert row_of(manager, twins[1]) == rows[0][:8] + rows[1][8:]
    assert sorted(manager.free_pages.tolist()) == [3, 4, *range(6, 16)]
    for req in twins:
        manager.cache_req(req, finished=True)
    assert sorted(manager.free_pages.tolist()) == [*range(2, 16)]
    manager.check_integrity()


def test_a_longer_known_prefix_frees_only_what_it_replaces():
    cache = DictCache(2)
    manager = make_manager(16, 2, cache)
    early = admit(manager, range(7), 0)
    late = admit(manager, range(7), 1)
    advance(manager, early)
    advance(manager, late)
    manager.cache_req(early, finished=False)
    manager.cache_req(early, finished=True)
    third = admit(manager, range(5), 2)  # 4 known tokens
    advance(manager, third)
    manager.cache_req(late, finished=True)
    assert cache.size_info == (2, 4)
    manager.cache_req(third, finished=True)
    assert sorted(manager.free_pages.tolist()) == [*range(3, 16)]
    manager.check_integrity()


def test_the_last_token_stays_out_of_the_cache():
    cache = DictCache(4)
    manager = make_manager(16, 4, cache)
    req = admit(manager, range(6), 0)
    advance(manager, req)
    advance(manager, req)
    assert (req.cached_len, len(req.input_ids)) == (7, 8)
    manager.cache_req(req, finished=True)
    assert [len(key) for key in cache.pages] == [4]
    # A prompt whose end fills a page, with no token after it.
    req = admit(manager, range(20, 28), 1)
    manager.allocate_paged([req])
    req.complete_one()
    assert (req.cached_len, len(req.input_ids)) == (8, 8)
    manager.cache_req(req, finished=True)
    assert sorted(len(key) for key in cache.pages) == [4, 4]
    manager.check_integrity()


def test_a_lock_moves_on_before_the_old_one_is_given_up():
    cache = DictCache(4)
    manager = make_manager(16, 4, cache)
    req = admit(manager, range(6), 0)
    advance(manager, req)
    manager.cache_req(req, finished=False)
    manager.cache_req(req, finished=True)
    assert cache.log == [
        "lock 0", "insert 4, 0 known", "lock 4", "unlock 0",
        "insert 4, 4 known", "unlock 4",
    ]  # fmt: skip


def test_what_a_failed_request_computed_is_not_kept():
    cache = DictCache(4)
    manager = make_manager(16, 4, cache)
    good = admit(manager, range(9), 0)
    advance(manager, good)
    manager.cache_req(good, finished=True)
    bad = admit(manager, [*range(8), *range(50, 60)], 1)
    advance(manager, bad)
    manager.drop_req(bad)
    assert sorted(len(key) for key in cache.pages) == [4, 8]
    assert cache.size_info == (8, 0)
    assert len(manager.free_pages) == 14
    manager.check_integrity()


def test_pages_of_the_cache_are_available_and_taken_when_needed():
    cache = DictCache(4)
    manager = make_manager(8, 4, cache)
    for start in (0, 30):
        req = admit(manager, range(start, start + 9), 0)
        advance(manager, req)
        manager.cache_req(req, finished=True)
    assert (len(manager.free_pages), manager.available_size) == (4, 32)
    kept = admit(manager, range(9), 1)
    assert manager.available_size == 24, "what is matched and locked is not"
    big = admit(manager, range(50, 70), 2)
    manager.allocate_paged([kept, big])
    assert manager.page_table[2, :20].unique().numel() == 20
    assert [key[0] for key in cache.pages] == [0, 0], (
        "only the other one was evicted"
    )
    assert len(manager.free_pages) == 0


def test_a_match_leaves_a_token_to_compute():
    manager = make_manager(8, 4, DictCache(4))
    req = admit(manager, range(9), 0)
    advance(manager, req)
    manager.cache_req(req, finished=True)
    assert [admit(manager, range(n), 1).cached_len for n in (4, 5, 8, 9)] == [
        0, 4, 4, 8,
    ]  # fmt: skip


# --- The cache that remembers nothing, and the names of caches ---


def test_the_naive_cache_knows_nothing_and_holds_nothing():
    cache = create_prefix_cache(CPU, "naive")
    assert isinstance(cache, NaivePrefixCache)
    ids = torch.arange(8, dtype=torch.int32)
    known, handle = cache.insert_prefix(ids, ids)
    matched = cache.match_prefix(ids).cuda_handle
    assert (known, handle.cached_len, matched.cached_len) == (0, 0, 0)
    slots = matched.get_matched_indices()
    assert (slots.dtype, slots.shape) == (torch.int32, (0,))
    cache.lock_handle(handle)
    cache.lock_handle(handle, unlock=True)
    cache.reset()
    cache.check_integrity()
    assert cache.size_info == (0, 0)
    assert cache.size_info.total_size == 0
    assert len(cache.evict(0)) == 0
    with pytest.raises(RuntimeError, match="1 tokens to evict"):
        cache.evict(1)


def test_a_cache_is_chosen_by_name(monkeypatch):
    from minisgl import core

    monkeypatch.setattr(core, "_GLOBAL_CTX", SimpleNamespace(page_size=1))
    assert isinstance(create_prefix_cache(CPU, "auto"), BasePrefixCache)
    with pytest.raises(
        ValueError, match=r"cache type 'lru' is not supported.*naive"
    ):
        create_prefix_cache(CPU, "lru")


# --- Broken books are noticed ---


def break_lost(manager):
    manager.free_pages = manager.free_pages[1:]


def break_twice(manager):
    manager.free_pages[0] = manager.free_pages[1]


def break_extra(manager):
    manager.free_pages = torch.cat([manager.free_pages, manager.free_pages[:1]])


def break_locked(manager):
    manager.lock(manager.prefix_cache.match_prefix(torch.arange(8)).cuda_handle)


def break_cache(manager):
    first, second = list(manager.prefix_cache.pages)[:2]
    manager.prefix_cache.pages[first] = manager.prefix_cache.pages[second]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (break_lost, "do not add up: 13 free, 8 tokens cached, 0 locked"),
        (break_extra, "do not add up: 15 free"),
        (break_locked, "do not add up: 14 free, 0 tokens cached, 8 locked"),
        (break_twice, "free list twice"),
        (break_cache, "a slot stands for two tokens"),
    ],
)
def test_c06_broken_books_are_noticed(fault, message):
    manager = make_manager(16, 4, DictCache(4))
    req = admit(manager, range(9), 0)
    advance(manager, req)
    manager.cache_req(req, finished=True)
    manager.check_integrity()
    fault(manager)
    with pytest.raises(RuntimeError, match=message):
        manager.check_integrity()


# --- Through the scheduler ---


@pytest.mark.parity
@pytest.mark.parametrize("sharing", [False, True], ids=["auto", "sharing"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_a_tight_pool_serves_everybody_and_never_leaks(page_size, sharing):
    rng = random.Random(page_size)
    driver = Driver(TINY, page_size=page_size, pages=192 // page_size)
    if sharing:
        share(driver)
    limits = [rng.randint(1, 64) for _ in range(24)]
    for uid, limit in enumerate(limits):
        driver.submit(uid, rng.choice(FIXED), limit)
        driver.step()
        if rng.random() < 0.2:
            driver.abort(rng.randint(0, uid))
    driver.run()
    assert len(driver.ended) > 15
    for uid, msg in driver.ended.items():
        assert msg.finish_reason == "length"
        assert len(driver.answers[uid]) == limits[uid]
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
def test_a_tight_pool_of_the_model_under_test():
    folder = model_under_test("llama3-tiny")
    fixed = prompts(folder)[:5]
    driver = Driver(folder, page_size=4, pages=24)
    for uid in range(10):
        driver.submit(uid, fixed[uid % 5], 3 + uid)
    driver.run()
    for uid in range(10):
        driver.assert_parity(uid, length=3 + uid)
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 16])
def test_c03_eight_requests_on_a_pool_for_two(page_size):
    driver = Driver(TINY, page_size=page_size, pages=144 // page_size)
    for uid in range(8):
        driver.submit(uid, FIXED[4], 40 + uid)
    driver.submit(8, FIXED[9], 60)  # 160 tokens, alone too much
    driver.run()
    assert driver.ended[8].finish_reason in REFUSED
    at_once = max(len(step.tokens) for step in driver.decodes())
    assert at_once in (2, 3), "3 where the common prompt is kept once"
    for uid in range(8):
        driver.assert_parity(uid, length=40 + uid)
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("tokens", [0, 5], ids=["prefill", "decode"])
@pytest.mark.parametrize("sharing", [False, True], ids=["auto", "sharing"])
def test_c14_nan_logits_end_one_request_and_its_pages_return(tokens, sharing):
    driver = Driver(TINY, page_size=4)
    if sharing:
        share(driver)
    for uid in range(3):
        driver.submit(uid, FIXED[4 + uid], 12)
    poison(driver, 1, at_length=len(FIXED[5]) + tokens)
    driver.run()
    reasons = [driver.ended[uid].finish_reason for uid in range(3)]
    assert reasons == ["length", "error", "length"]
    assert len(driver.answers[1]) == tokens
    driver.assert_parity(0, 2, length=12)
    driver.assert_clean()
    # Nothing of what the failing step computed is in the prefix cache: a prompt
    # that did not get through is not known, one that did may be.
    failed = torch.tensor(FIXED[5] + driver.answers[1], dtype=torch.int32)
    cache = driver.scheduler.cache_manager.prefix_cache
    known = cache.match_prefix(failed).cuda_handle.cached_len
    assert known <= (32 if tokens else 0)
    driver.scheduler.engine.sampler.processors.clear()
    driver.submit(3, FIXED[5], 12)
    driver.run()
    driver.assert_parity(3, length=12)
    driver.assert_every_page()


@pytest.mark.parity
def test_a_known_prefix_is_not_computed_again():
    driver = Driver(TINY, page_size=4)
    share(driver)
    shared = FIXED[5]
    for uid, ids in enumerate([shared, FIXED[2], shared, [*shared, 11, 12]]):
        driver.submit(uid, ids, 6)
        driver.run()
    sizes = [
        size for step in driver.prefills() for size in step.tokens.values()
    ]
    assert sizes == [33, 7, 1, 3]
    assert driver.answers[2] == driver.answers[0]
    driver.assert_parity(0, 1, 2, 3)
    driver.assert_every_page()


def test_a_known_prefix_is_not_paid_for():
    driver = Driver(TINY, page_size=4, pages=18)
    share(driver)
    driver.submit(0, FIXED[5], 1)  # leaves 32 tokens in the cache, 40 are free
    driver.run()
    for uid in (1, 2):
        driver.submit(uid, FIXED[5], 19)  # 52 each, 20 of them new
    driver.run()
    assert driver.steps[1] == ("prefill", {1: 1, 2: 1})
    driver.assert_parity(1, 2, length=19)
    driver.assert_every_page()


def test_what_is_matched_is_locked_before_memory_is_counted():
    driver = Driver(TINY, page_size=1, pages=64)
    share(driver)
    driver.submit(
        0, FIXED[5], 1
    )  # leaves its 33 tokens in the cache, 31 are free
    driver.run()
    assert driver.scheduler.cache_manager.prefix_cache.size_info == (33, 0)
    driver.submit(1, FIXED[4], 40)  # 57: has to evict
    driver.step()
    driver.submit(2, FIXED[5], 20)
    driver.run()
    driver.assert_parity(1, 2)
    driver.assert_every_page()


def test_a_prompt_that_is_refused_memory_locks_nothing():
    driver = Driver(TINY, page_size=1, pages=64)
    share(driver)
    driver.submit(0, FIXED[5], 1)
    driver.run()
    driver.submit(1, FIXED[2], 24)
    driver.step()
    driver.submit(2, FIXED[5], 20)  # 53 with 33 known: 20 more, 7 too many
    driver.step()
    cache = driver.scheduler.cache_manager.prefix_cache
    assert driver.answers[2] == []
    assert cache.size_info.protected_size <= 7, "only the running one's prompt"
    driver.run()
    driver.assert_parity(2, length=20)
    driver.assert_every_page()
