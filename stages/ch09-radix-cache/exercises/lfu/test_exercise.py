"""LFU: who goes first, what a split remembers, and a sound tree at every moment."""

import random

import pytest
import torch

from minisgl.core import Context, set_global_ctx
from minisgl.kvcache.lfu_cache import LfuPrefixCache
from minisgl.kvcache.radix_cache import RadixPrefixCache
from tests.driver import Driver
from tests.parity import model_under_test, prompts
from tests.radix import audit, draw, find, node_of, offer, to_pages

FOLDER = model_under_test("qwen3-tiny")


def make(page_size=1, kind=LfuPrefixCache):
    set_global_ctx(Context(page_size))
    return kind(torch.device("cpu"))


def evict(cache, pages):
    return to_pages(cache, cache.evict(pages * cache.page_size))


def paths(tree, before=""):
    """Every leaf's whole path."""
    if not tree:
        return {before}
    return set().union(*(paths(sub, before + run) for run, sub in tree.items()))


def test_what_is_used_often_survives_what_was_used_once():
    kept = {}
    for kind in (LfuPrefixCache, RadixPrefixCache):
        cache = make(kind=kind)
        offer(cache, "often", 0)
        for _ in range(3):
            find(cache, "often")
        for at in range(4):  # prompts that never come again
            offer(cache, f"{at}xyz", 10 + 4 * at)
        cache.evict(16)
        kept[kind] = paths(draw(cache))
    assert kept[LfuPrefixCache] == {"often"}
    assert "often" not in kept[RadixPrefixCache]


def test_of_equals_the_least_recent_goes_first():
    cache = make()
    offer(cache, "ab", 0)
    offer(cache, "cd", 2)
    find(cache, "ab")
    find(cache, "cd")
    assert sorted(evict(cache, 2)) == [0, 1]
    assert draw(cache) == {"cd": {}}


def test_a_walk_uses_every_node_on_its_way_once():
    cache = make()
    offer(cache, "abcd", 0)
    offer(cache, "abxy", 4)
    for _ in range(2):
        find(cache, "abcd")
    counts = {
        words: cache.uses(node)
        for words, node in [
            ("ab", node_of(cache, "ab")),
            ("abcd", node_of(cache, "abcd")),
            ("abxy", node_of(cache, "abxy")),
        ]
    }
    # The three look-ups of this test count as well, one after the other.
    assert counts == {"ab": 6, "abcd": 3, "abxy": 1}


def test_the_upper_half_of_a_split_was_used_as_often():
    cache = make()
    offer(cache, "abcd", 0)
    leaf = node_of(cache, "abcd")
    for _ in range(4):
        find(cache, "abcd")
    assert cache.uses(leaf) == 5
    find(cache, "ab")
    assert cache.uses(leaf.parent) == 6
    assert cache.uses(leaf) == 5


def test_a_new_leaf_has_not_been_used():
    cache = make()
    offer(cache, "ab", 0)
    assert cache.uses(next(iter(cache.root_node.children.values()))) == 0


def test_a_use_after_the_node_began_to_wait_counts():
    cache = make()
    offer(cache, "ab", 0)
    offer(cache, "cd", 2)
    offer(cache, "ef", 4)
    find(cache, "ab")
    find(cache, "ab")
    find(cache, "ef")
    assert evict(cache, 2) == [2, 3]
    assert evict(cache, 2) == [4, 5]
    assert evict(cache, 2) == [0, 1]


def test_what_is_locked_stays():
    cache = make()
    offer(cache, "ab", 0)
    offer(cache, "cd", 2)
    find(cache, "cd")
    handle = find(cache, "ab")
    cache.lock_handle(handle)
    find(cache, "cd")
    assert sorted(evict(cache, 2)) == [2, 3]
    cache.lock_handle(handle, unlock=True)
    assert sorted(evict(cache, 2)) == [0, 1]


def test_a_reset_forgets_the_counts():
    cache = make()
    offer(cache, "ab", 0)
    find(cache, "ab")
    cache.reset()
    offer(cache, "ab", 0)
    leaf = next(iter(cache.root_node.children.values()))
    assert cache.uses(leaf) == 0


@pytest.mark.parametrize("page_size", [1, 4])
def test_the_victim_is_always_the_least_used_leaf(page_size):
    rng, cache, free = random.Random(page_size), make(page_size), [*range(60)]
    for _ in range(300):
        word = "".join(rng.choices("ab", k=rng.randint(1, 7)))
        if rng.random() < 0.4:
            find(cache, word)
        elif len(free) >= len(word):
            taken = free[: len(word)]
            known = offer_pages(cache, word, taken)
            free = free[len(word) :] + taken[:known]
        else:
            leaves = [n for n in cache._nodes() if cache._evictable(n)]
            least = min((cache.uses(n), n.timestamp) for n in leaves)
            victim = cache._next_victim()
            assert (cache.uses(victim), victim.timestamp) == least
            cache._enqueue(victim)
            free += evict(cache, rng.randint(1, 5))
        audit(cache, free, 60)


def offer_pages(cache, word, pages):
    """Insert a page for each letter; the number of pages known before."""
    size = cache.page_size
    ids = [ord(letter) for letter in word for _ in range(size)]
    slots = [page * size + i for page in pages for i in range(size)]
    numbers = (torch.tensor(x, dtype=torch.int32) for x in (ids, slots))
    return cache.insert_prefix(*numbers).cached_len // size


@pytest.mark.parity
def test_an_engine_answers_the_same_from_a_tight_pool():
    driver = Driver(FOLDER, page_size=4, pages=48)
    driver.scheduler.cache_manager.prefix_cache = make(4)
    chosen = [p for p in prompts(FOLDER) if len(p) <= 64]
    for uid, prompt in enumerate([*chosen, *chosen, *chosen]):
        driver.submit(uid, prompt, 6)
    driver.run()
    driver.assert_parity(length=6)
    driver.assert_every_page()
