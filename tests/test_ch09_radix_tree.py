"""The radix tree by itself: match, insert, split, lock, evict, and the books."""

import random

import pytest
import torch

from minisgl.core import Context, set_global_ctx
from minisgl.kvcache import SUPPORTED_CACHE_MANAGER, create_prefix_cache
from minisgl.kvcache.radix_cache import RadixPrefixCache, RadixTreeNode
from minisgl.kvcache.radix_tree import get_key_fn
from tests.radix import (
    audit,
    draw,
    find,
    found_pages,
    make_cache,
    node_of,
    offer,
    pages_of,
    slots_of,
    tensor,
    to_pages,
)
from tools.bench_radix import measure

SIZES = pytest.mark.parametrize("size", [1, 4, 16])


# -- match and insert ----------------------------------------------------------


@SIZES
def test_an_empty_tree_knows_nothing(size):
    cache = make_cache(size)
    handle = find(cache, "abc")
    assert handle.cached_len == 0 and len(handle.get_matched_indices()) == 0
    assert cache.size_info == (0, 0) and cache.size_info.total_size == 0
    assert handle.get_matched_indices().dtype == torch.int32


@SIZES
@pytest.mark.parametrize(
    "asked, known",
    [("abcd", 4), ("abcdxy", 4), ("ab", 2), ("abx", 2), ("x", 0)],
)
def test_the_longest_known_prefix_is_found(size, asked, known):
    cache = make_cache(size)
    result = offer(cache, "abcd", 3)
    assert result.cached_len == 0 and result.handle.cached_len == 4 * size
    assert find(cache, asked).cached_len == known * size
    assert found_pages(cache, asked) == [3, 4, 5, 6][:known]


@SIZES
def test_what_is_known_keeps_its_own_slots(size):
    cache = make_cache(size)
    offer(cache, "abcd", 0)
    result = offer(cache, "abcxyz", 10)
    assert (
        result.cached_len == 3 * size and result.handle.cached_len == 6 * size
    )
    assert found_pages(cache, "abcxyz") == [0, 1, 2, 13, 14, 15]
    assert found_pages(cache, "abcd") == [0, 1, 2, 3]
    assert cache.size_info == (7 * size, 0)


@SIZES
def test_inserting_what_is_known_changes_nothing(size):
    cache = make_cache(size)
    offer(cache, "abcd", 0)
    for words in ("abcd", "ab"):
        result = offer(cache, words, 20)
        assert (
            result.cached_len == result.handle.cached_len == len(words) * size
        )
    assert found_pages(cache, "abcd") == [0, 1, 2, 3]
    assert cache.size_info == (4 * size, 0)


@pytest.mark.parametrize("size", [4, 16])
def test_only_whole_pages_are_kept_and_found(size):
    cache = make_cache(size)
    ids = pages_of("abc", size)[:-1]
    result = cache.insert_prefix(tensor(ids), tensor(range(len(ids))))
    assert (
        result.handle.cached_len == 2 * size == cache.size_info.evictable_size
    )
    inside = [*ids[: size + 1], 1, 1, *ids[size + 3 :]]
    assert cache.match_prefix(tensor(inside)).cuda_handle.cached_len == size
    assert (
        cache.match_prefix(tensor(ids[: size - 1])).cuda_handle.cached_len == 0
    )


@pytest.mark.parametrize("size", [4, 16])
def test_prompts_that_differ_within_their_first_page_are_siblings(size):
    cache = make_cache(size)
    for last in (1, 2):
        ids = [7] * (size - 1) + [last]
        cache.insert_prefix(
            tensor(ids), tensor(range(last * size, (last + 1) * size))
        )
    assert len(cache.root_node.children) == 2


def test_a_child_is_known_by_its_first_page():
    assert get_key_fn(1)(tensor([5, 6])) == 5
    assert get_key_fn(2)(tensor([5, 6, 7])) == (5, 6)


def test_the_tree_keeps_copies():
    cache = make_cache()
    ids, slots = tensor(b"abcd"), tensor(range(4))
    cache.insert_prefix(ids, slots)
    ids[:], slots[:] = 0, 0
    assert found_pages(cache, "abcd") == [0, 1, 2, 3]


# -- split -----------------------------------------------------------------------


@SIZES
def test_a_match_that_ends_within_a_node_splits_it(size):
    cache = make_cache(size)
    old = offer(cache, "abcdef", 0).handle
    assert draw(cache) == {"abcdef": {}}
    handle = find(cache, "abcx")
    assert draw(cache) == {"abc": {"def": {}}}
    assert handle.node.length == 3 * size and old.node.length == 3 * size
    # Both handles still mean what they meant.
    assert to_pages(cache, handle.get_matched_indices()) == [0, 1, 2]
    assert to_pages(cache, old.get_matched_indices()) == [0, 1, 2, 3, 4, 5]
    audit(cache, free=[], pages=6)


@SIZES
def test_the_tree_branches_where_prompts_part(size):
    cache = make_cache(size)
    offer(cache, "abcdef", 0)
    offer(cache, "abcxy", 10)
    offer(cache, "abq", 20)
    assert draw(cache) == {"ab": {"c": {"def": {}, "xy": {}}, "q": {}}}


def test_the_upper_half_of_a_split_inherits_locks_and_time():
    cache = make_cache()
    handle = offer(cache, "abcdef", 0).handle
    cache.lock_handle(handle)
    cache.lock_handle(handle)
    lower = handle.node
    upper = lower.split_at(2)
    assert (upper.length, lower.length) == (2, 4)
    assert upper.ref_count == lower.ref_count == 2
    assert upper.timestamp == lower.timestamp
    assert lower.parent is upper and upper.parent is cache.root_node
    assert [*upper.children.values()] == [lower]
    assert [*cache.root_node.children.values()] == [upper]
    assert cache.size_info == (0, 6)


@pytest.mark.parametrize("at", [0, 3])
def test_a_node_is_not_split_at_its_ends(at):
    cache = make_cache()
    node = offer(cache, "abc", 0).handle.node
    with pytest.raises(AssertionError):
        node.split_at(at)


# -- lock ------------------------------------------------------------------------


@SIZES
def test_locks_protect_the_whole_path_and_are_counted(size):
    cache = make_cache(size)
    long = offer(cache, "abcd", 0).handle
    short = find(cache, "ab")
    cache.lock_handle(long)
    cache.lock_handle(short)
    assert cache.size_info == (0, 4 * size)
    cache.lock_handle(long, unlock=True)
    assert cache.size_info == (2 * size, 2 * size)
    cache.lock_handle(short, unlock=True)
    assert cache.size_info == (4 * size, 0)
    assert node_of(cache, "ab").ref_count == 0


def test_unlocking_more_often_than_locking_is_refused():
    cache = make_cache()
    handle = offer(cache, "ab", 0).handle
    with pytest.raises(AssertionError, match="more often"):
        cache.lock_handle(handle, unlock=True)


def test_an_empty_match_can_be_locked():
    cache = make_cache()
    handle = find(cache, "ab")
    cache.lock_handle(handle)
    cache.lock_handle(handle, unlock=True)
    assert cache.size_info == (0, 0)


# -- evict -----------------------------------------------------------------------


def evicted(cache, pages):
    return to_pages(cache, cache.evict(pages * cache.page_size))


@SIZES
def test_c07_whole_pages_the_least_recently_used_first(size):
    cache = make_cache(size)
    for first, words in enumerate(("ab", "cd", "ef")):
        offer(cache, words, 2 * first)
    find(cache, "ab")
    assert evicted(cache, 2) == [2, 3]
    assert evicted(cache, 2) == [4, 5]
    assert evicted(cache, 2) == [0, 1]
    assert cache.size_info == (0, 0) and draw(cache) == {}


@SIZES
def test_c07_a_leaf_goes_before_its_parent(size):
    cache = make_cache(size)
    offer(cache, "abcd", 0)
    offer(cache, "abxy", 10)
    offer(cache, "q", 20)
    # "ab" is as old as "xy", and yet the newer "q" goes first: it is a leaf.
    assert evicted(cache, 2) == [2, 3]
    assert evicted(cache, 2) == [12, 13]
    assert draw(cache) == {"ab": {}, "q": {}}
    assert evicted(cache, 2) == [0, 1]
    assert evicted(cache, 1) == [20]


@SIZES
def test_c07_a_leaf_is_trimmed_from_its_end(size):
    cache = make_cache(size)
    offer(cache, "abcdef", 0)
    assert evicted(cache, 2) == [4, 5]
    assert found_pages(cache, "abcdef") == [0, 1, 2, 3]
    assert cache.size_info == (4 * size, 0)
    assert evicted(cache, 1) == [3]
    audit(cache, free=[3, 4, 5], pages=6)


@pytest.mark.parametrize(
    "wanted, pages", [(0, 0), (1, 1), (4, 1), (5, 2), (9, 3)]
)
def test_c07_part_of_a_page_costs_the_whole(wanted, pages):
    cache = make_cache(4)
    offer(cache, "abcdef", 0)
    assert len(cache.evict(wanted)) == 4 * pages
    assert cache.size_info == (24 - 4 * pages, 0)


@SIZES
def test_c07_what_is_locked_is_never_evicted(size):
    cache = make_cache(size)
    offer(cache, "abcdef", 0)
    handle = find(cache, "abc")
    cache.lock_handle(handle)
    with pytest.raises(RuntimeError, match=rf"{4 * size} .* only {3 * size}"):
        cache.evict(4 * size)
    assert cache.size_info == (3 * size, 3 * size)
    assert evicted(cache, 3) == [3, 4, 5]
    with pytest.raises(RuntimeError, match="only 0"):
        cache.evict(1)
    cache.lock_handle(handle, unlock=True)
    assert evicted(cache, 3) == [0, 1, 2]


def test_a_leaf_that_is_used_while_it_waits_moves_back():
    cache = make_cache()
    for first, word in enumerate("abcd"):
        offer(cache, word, first)
    handle = find(cache, "a")
    cache.lock_handle(handle)
    find(cache, "b")
    assert evicted(cache, 1) == [2]
    cache.lock_handle(handle, unlock=True)
    assert evicted(cache, 3) == [3, 0, 1]


def test_a_leaf_with_new_children_waits_for_them():
    cache = make_cache()
    offer(cache, "ab", 0)
    offer(cache, "abcd", 10)
    assert evicted(cache, 3) == [12, 13, 1]
    assert evicted(cache, 1) == [0]


def test_a_node_stands_in_the_queue_once():
    cache = make_cache()
    for _ in range(50):
        for first, words in enumerate(("ab", "ac", "d")):
            cache.lock_handle(handle := offer(cache, words, 2 * first).handle)
            cache.lock_handle(handle, unlock=True)
    assert len(cache._queue) <= len([*cache._nodes()]) == 4


# -- reset, by name ----------------------------------------------------------------


def test_reset_forgets_all_but_never_what_is_locked():
    cache = make_cache()
    handle = offer(cache, "abc", 0).handle
    cache.lock_handle(handle)
    with pytest.raises(RuntimeError, match="locked"):
        cache.reset()
    assert found_pages(cache, "abc") == [0, 1, 2]
    cache.lock_handle(handle, unlock=True)
    cache.reset()
    assert find(cache, "abc").cached_len == 0 and cache.size_info == (0, 0)
    with pytest.raises(RuntimeError):
        cache.evict(1)


@pytest.mark.parametrize("name", ["radix", "auto"])
def test_the_radix_cache_is_made_by_name(name):
    set_global_ctx(Context(4))
    cache = create_prefix_cache(torch.device("cpu"), name)
    assert isinstance(cache, RadixPrefixCache) and cache.page_size == 4
    assert SUPPORTED_CACHE_MANAGER.supported_names() == ["naive", "radix"]


def test_an_unknown_cache_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"lru.*naive.*radix"):
        create_prefix_cache(torch.device("cpu"), "lru")


# -- the books ---------------------------------------------------------------------


class Player:
    """Plays random operations on a pool; knows its free pages and its locks."""

    def __init__(self, size, seed, pages=60):
        self.cache, self.rng = make_cache(size), random.Random(seed)
        self.size, self.pages = size, pages
        self.free, self.locked, self.done = (
            [*range(pages)],
            [],
            dict.fromkeys(
                ("insert", "match", "lock", "unlock", "split", "evict"), 0
            ),
        )

    def words(self):
        # Few letters, so that prefixes are shared and cut in the middle.
        return "".join(self.rng.choices("abc", k=self.rng.randint(1, 12)))

    def play(self):
        name = self.rng.choice([n for n in self.done if n != "split"])
        nodes = len([*self.cache._nodes()])
        self.done[name] += bool(getattr(self, name)())
        grown = len([*self.cache._nodes()]) - nodes
        self.done["split"] += grown > (name == "insert") and name != "evict"

    def insert(self):
        words = self.words()[: len(self.free)]
        self.rng.shuffle(self.free)
        pages = self.free[: len(words)]
        ids, slots = pages_of(words, self.size), slots_of(pages, self.size)
        known, handle = self.cache.insert_prefix(tensor(ids), tensor(slots))
        known //= self.size
        self.free = self.free[len(words) :] + pages[:known]
        found = to_pages(self.cache, handle.get_matched_indices())
        assert found[known:] == pages[known:]
        return words

    def match(self):
        words = self.words()
        found = found_pages(self.cache, words)
        # Nothing longer is known: the next page is no child of where it ended.
        if len(found) < len(words):
            node = find(self.cache, words).node
            rest = tensor(pages_of(words[len(found) :], self.size))
            assert self.cache._key_fn(rest) not in node.children
        return True

    def lock(self):
        handle = find(self.cache, self.words())
        if len(self.locked) < 8 and handle.cached_len:
            self.cache.lock_handle(handle)
            self.locked.append((handle, handle.get_matched_indices().tolist()))
            return True

    def unlock(self):
        if self.locked:
            at = self.rng.randrange(len(self.locked))
            handle, slots = self.locked.pop(at)
            assert handle.get_matched_indices().tolist() == slots
            self.cache.lock_handle(handle, unlock=True)
            return True

    def evict(self):
        room = self.cache.size_info.evictable_size
        wanted = self.rng.randint(0, min(room, 6 * self.size))
        pages = to_pages(self.cache, self.cache.evict(wanted))
        assert len(pages) == -(-wanted // self.size)
        held = {slot // self.size for _, slots in self.locked for slot in slots}
        assert not held.intersection(pages)
        self.free += pages
        return wanted


@pytest.mark.parametrize("size", [1, 4])
def test_c06_the_books_balance_after_every_operation(size):
    player = Player(size, seed=size)
    for _ in range(2000):
        player.play()
        audit(player.cache, player.free, player.pages)
    assert all(count > 50 for count in player.done.values()), player.done


def _lose_evictable(cache):
    cache.evictable_size -= 1


def _lose_protected(cache):
    cache.protected_size += 1


def _swap_counters(cache):
    cache.evictable_size += 4
    cache.protected_size -= 4


def _drop_a_lock(cache):
    node_of(cache, "ab").ref_count = 0


def _drop_one_of_two_locks(cache):
    node_of(cache, "ab").ref_count -= 1


def _negative_count(cache):
    node_of(cache, "x").ref_count = -1


def _forget_a_leaf(cache):
    cache._queue.clear()
    node_of(cache, "x").queued = False


def _slot_twice(cache):
    node = node_of(cache, "x")
    node._value = node_of(cache, "abcd")._value[: node.length]


def _half_a_page(cache):
    node = node_of(cache, "x")
    node._key, node._value = node._key[:-1], node._value[:-1]
    cache.evictable_size -= 1


def _no_page(cache):
    node = node_of(cache, "x")
    cache.evictable_size -= node.length
    node._key, node._value = node._key[:0], node._value[:0]


@pytest.mark.parametrize(
    "damage, message",
    [
        (_lose_evictable, "the counters say"),
        (_lose_protected, "the counters say"),
        (_swap_counters, "the counters say"),
        (_drop_a_lock, "the counters say"),
        (_drop_one_of_two_locks, "fewer locks"),
        (_negative_count, "the counters say"),
        (_forget_a_leaf, "not in the queue"),
        (_slot_twice, "twice"),
        (_half_a_page, "no whole page"),
        (_no_page, "no whole page"),
    ],
)
def test_c06_damage_is_noticed(damage, message):
    cache = make_cache(4)
    for _ in range(2):
        cache.lock_handle(offer(cache, "abcd", 0).handle)
    find(cache, "ab")
    offer(cache, "x", 10)
    cache.check_integrity()
    damage(cache)
    with pytest.raises(RuntimeError, match=message):
        cache.check_integrity()


# -- cost --------------------------------------------------------------------------


def test_the_work_per_token_does_not_grow_with_the_length():
    short, long = (
        measure(requests=300, length=n, pages=64 * n) for n in (128, 1024)
    )
    # Every token of a key is compared once in a match and once in an insertion.
    assert 1 <= short.compared_per_token <= 2
    assert 1 <= long.compared_per_token <= 2
    assert long.nodes_per_request <= 1.25 * short.nodes_per_request
    assert long.popped_per_victim <= 1.25 * short.popped_per_victim
    assert short.hit_rate == pytest.approx(long.hit_rate, abs=0.05)


def test_even_a_chain_of_nodes_is_walked_once(monkeypatch):
    cache, seen = make_cache(), []
    compare = RadixTreeNode.get_match_len
    monkeypatch.setattr(
        RadixTreeNode,
        "get_match_len",
        lambda node, ids: (
            seen.append(min(node.length, len(ids))) or compare(node, ids)
        ),
    )
    words = "".join(chr(65 + i) for i in range(200))
    for end in range(1, 201):
        offer(cache, words[:end], 1000 * end)
    seen.clear()
    find(cache, words)
    assert seen == [1] * 200
