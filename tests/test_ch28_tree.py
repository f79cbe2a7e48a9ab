"""Two tiers by hand: pages, copies, what moves when, and the books."""

import random

import pytest
import torch

from minisgl.core import Context, set_global_ctx
from minisgl.kvcache import MHAKVCache, create_prefix_cache, hiradix_cache
from minisgl.kvcache import transfer as transfer_file
from minisgl.kvcache.host_pool import HostPages, host_buffer, pages_within
from minisgl.kvcache.radix_cache import RadixPrefixCache
from minisgl.kvcache.transfer import Run, Transfers, find_runs
from tests.tiers import Shelf, named, words

CPU = torch.device("cpu")
POLICIES = pytest.mark.parametrize("policy", ["write_through", "write_back"])
SIZES = pytest.mark.parametrize("size", [1, 4, 16])


@pytest.fixture
def exact(monkeypatch):
    """Evicts no more than is asked for."""
    monkeypatch.setattr(hiradix_cache, "_AT_ONCE", 0)


# -- pages of the host, and copies ---------------------------------------------


def test_host_pages_are_taken_from_the_bottom():
    pages = HostPages(8)
    first, second = pages.allocate(3), pages.allocate(2)
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [3, 4])
    assert first.dtype == torch.int64
    pages.free(first[1:])
    assert pages.num_free == 5
    assert pages.allocate(4).tolist() == [1, 2, 5, 6]
    assert (pages.num_free, pages.num_pages) == (1, 8)
    with pytest.raises(AssertionError):
        pages.allocate(2)
    assert pages.num_free == 1
    pages.free(first[1:])
    with pytest.raises(AssertionError, match="given back twice"):
        pages.free(first[1:])


@pytest.mark.parametrize(
    "pages, runs",
    [
        ([5], [(0, 5, 1)]),
        ([0, 1, 2], [(0, 0, 3)]),
        ([4, 5, 9, 2, 3], [(0, 4, 2), (2, 9, 1), (3, 2, 2)]),
        ([3, 2, 1], [(0, 3, 1), (1, 2, 1), (2, 1, 1)]),
    ],
)
def test_pages_that_follow_one_another_are_one_copy(pages, runs):
    assert find_runs(torch.tensor(pages)) == [Run(*run) for run in runs]


@pytest.mark.parametrize("stage", [1, 1 << 20], ids=["one", "all"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn]
)
def test_pages_come_back_as_they_went(monkeypatch, dtype, stage):
    monkeypatch.setattr(transfer_file, "_STAGE", stage)
    pool = MHAKVCache(2, 3, 8, 12, 4, dtype, CPU)
    pool._buffer.view(torch.uint8).random_(0, 120)
    before = pool._buffer.view(torch.uint8).clone()
    transfers = Transfers(pool, host_buffer(pool, 9))
    pages, on_host = torch.tensor([7, 2, 3, 11]), torch.tensor([1, 2, 8, 0])
    transfers.write(pages, on_host)
    pool._buffer.view(torch.uint8)[:, :, pages] = 0
    # In another order, to other places.
    back = torch.tensor([0, 5, 1, 10])
    transfers.read(back[[2, 0, 1, 3]], on_host[[2, 0, 1, 3]])
    for layer in range(3):
        transfers.arrive(layer)
    after = pool._buffer.view(torch.uint8)
    assert torch.equal(after[:, :, back], before[:, :, pages])
    others = [4, 6, 8, 9]
    assert torch.equal(after[:, :, others], before[:, :, others])


def test_a_read_begins_with_the_forward_and_waits_layer_by_layer(monkeypatch):
    """In the order of the streams: first all that was launched, then each layer."""
    log = []

    class Event(transfer_file.new_event(CPU).__class__):
        def record(self):
            log.append("event")

    def note(what):
        return lambda *_: log.append(what)

    monkeypatch.setattr(transfer_file, "new_event", lambda device: Event())
    monkeypatch.setattr(transfer_file, "wait_event", note("wait"))
    monkeypatch.setattr(transfer_file, "wait_for_current", note("after all"))
    pool = MHAKVCache(1, 2, 8, 4, 1, torch.float32, CPU)
    transfers = Transfers(pool, host_buffer(pool, 4))
    copy = transfers._read_layer
    monkeypatch.setattr(
        transfers,
        "_read_layer",
        lambda layer, chunks: (log.append(layer), copy(layer, chunks)),
    )
    transfers.read(torch.tensor([0]), torch.tensor([3]))
    transfers.read(torch.tensor([2]), torch.tensor([1]))
    assert log == []
    transfers.arrive(0)
    assert log == ["after all", 0, "event", 1, "event", "wait"]
    del log[:]
    for layer in (0, 1, 1):
        transfers.arrive(layer)
    assert log == ["wait"], "each layer once, and nothing without a reason"


# -- what is where -------------------------------------------------------------


@SIZES
@POLICIES
def test_what_leaves_the_device_is_found_on_the_host(policy, size):
    shelf = Shelf(4, 8, policy, size)
    assert shelf.put("abcd") == (0, 0)
    assert words(shelf.cache, "host") == ["abcd"] * (policy == "write_through")
    assert shelf.put("wxyz") == (0, 0)
    assert words(shelf.cache, "device") == ["wxyz"]
    assert shelf.match("abcd") == (0, 4)
    assert shelf.put("abcd") == (0, 4)
    assert shelf.match("abcd") == (4, 4)
    assert shelf.cache.loaded_tokens == 4 * size
    assert shelf.cache.numbers == {"host_pages": 8, "loaded_tokens": 4 * size}


@POLICIES
def test_a_prefix_may_lie_on_both_tiers(exact, policy):
    shelf = Shelf(4, 8, policy)
    shelf.put("abcd")
    shelf.put("yz")
    # The end of the old prefix went, its beginning stays.
    assert words(shelf.cache, "device") == ["ab", "yz"]
    assert shelf.match("abcdef") == (2, 4)
    assert shelf.match("abcx") == (2, 3)
    assert shelf.put("abcd") == (2, 4)
    assert words(shelf.cache, "device") == ["ab", "c", "d"]


def test_write_back_copies_only_what_leaves(exact):
    shelf = Shelf(4, 8, "write_back")
    shelf.put("abc")
    shelf.put("ab")
    assert words(shelf.cache, "host") == []
    shelf.put("xy")
    assert words(shelf.cache, "host") == ["c"]
    shelf.put("abc")  # comes back, and its copy stays
    assert shelf.match("abc") == (3, 3)
    assert words(shelf.cache, "host") == ["c", "y"]
    writes = []
    write = shelf.cache._transfers.write
    shelf.cache._transfers.write = lambda *a: writes.append(a) or write(*a)
    shelf.put("x")
    shelf.put("mno")
    assert shelf.match("abc") == (0, 3)
    assert sum(len(pages) for pages, _ in writes) == 2, "ab; not c again"


def test_some_tokens_are_evicted_at_once():
    """One by one they would be a node each, and a copy each."""
    shelf = Shelf(600, 600)
    letters = "".join(chr(200 + i) for i in range(600))
    shelf.put(letters)
    shelf.put("a")
    assert [len(n) for n in words(shelf.cache, "device")] == [1, 344]
    shelf.put("b")
    assert [len(n) for n in words(shelf.cache, "device")] == [1, 1, 344]


@POLICIES
def test_the_longest_unused_leaves_the_host_first(policy):
    shelf = Shelf(3, 6, policy)
    for letters in ("abc", "def", "abc", "ghi"):
        shelf.put(letters)
    shelf.put("jkl")
    assert words(shelf.cache, "host") == [
        "abc" if policy == "write_back" else "ghi",
        "ghi" if policy == "write_back" else "jkl",
    ]
    assert shelf.match("def") == (0, 0)


def test_a_copy_may_go_while_the_node_is_on_the_device():
    shelf = Shelf(6, 3)
    shelf.put("abc")
    shelf.put("def")
    assert words(shelf.cache, "host") == ["def"]
    assert words(shelf.cache, "device") == ["abc", "def"]
    # Evicted now, it is written after all, at the cost of an older copy.
    shelf.put("ghi")
    assert shelf.match("ghi") == (3, 3)


@POLICIES
def test_without_room_on_the_host_a_prefix_is_gone(policy):
    shelf = Shelf(6, 2, policy)
    shelf.put("abc")
    shelf.put("uvwxyz")
    assert shelf.match("abc") == (0, 0)
    shelf.put("abcdef")
    assert len(words(shelf.cache, "host")) == 0


def test_below_what_is_gone_nothing_stays(exact):
    """The host keeps an end, and has no room for the beginning."""
    shelf = Shelf(4, 2, "write_back")
    shelf.put("abcd")
    shelf.put("x")
    assert shelf.match("abcd") == (3, 4)
    held = shelf.hold("x")
    shelf.put("uvw")
    assert shelf.match("abcd") == (0, 0)
    assert words(shelf.cache, "host") == []
    shelf.manager.unlock(held)
    shelf.audit()


@POLICIES
def test_what_is_locked_stays_on_both_tiers(policy):
    shelf = Shelf(4, 6, policy)
    shelf.put("ab")
    shelf.put("wxyz")
    held = shelf.hold("ab")
    assert "ab" in words(shelf.cache, "host")
    for letters in ("cd", "ef", "gh", "ij"):
        shelf.put(letters)
        assert "ab" in words(shelf.cache, "device")
        assert "ab" in words(shelf.cache, "host")
    with pytest.raises(RuntimeError, match="3 tokens to evict, only 2"):
        shelf.cache.evict(3)
    shelf.manager.unlock(held)
    shelf.audit()


def test_room_for_a_reload_is_made_at_the_cost_of_others():
    """The host is full of what is being loaded, and the device of the other."""
    shelf = Shelf(2, 2, "write_back")
    shelf.put("ab")
    shelf.put("cd")
    assert (words(shelf.cache, "host"), shelf.match("cd")) == (["ab"], (2, 2))
    assert shelf.put("ab") == (0, 2)
    assert shelf.match("cd") == (0, 0)


@POLICIES
def test_what_was_computed_anew_is_taken(policy):
    """Its copy on the host stays, the slots are the new ones."""
    shelf = Shelf(8, 8, policy)
    shelf.put("abcd")
    manager, cache = shelf.manager, shelf.cache
    manager._free(cache.evict(2))  # all of it, four at once
    manager._free(cache.evict(0))
    assert (shelf.match("abcd"), len(manager.free_pages)) == ((0, 4), 8)
    pages = manager._allocate(5)
    shelf.fill("abcde", 0, pages)
    slots = manager._page_to_token(pages)
    known, handle = cache.insert_prefix(shelf.ids("abcde"), slots)
    assert (
        known == 0 and handle.get_matched_indices().tolist() == slots.tolist()
    )
    shelf.check("abcde", handle)
    shelf.audit()
    assert shelf.match("abcde") == (5, 5)
    assert cache.loaded_tokens == 0


def test_a_split_divides_pages_of_both_tiers():
    shelf = Shelf(8, 8, size=4)
    shelf.put("abcd")
    shelf.put("abxy")
    upper, lower = named(shelf.cache, "ab"), named(shelf.cache, "cd")
    assert (upper.host.tolist(), lower.host.tolist()) == ([0, 1], [2, 3])
    assert upper.copied is lower.copied is not None


def test_a_reset_forgets_both_tiers():
    shelf = Shelf(4, 4)
    shelf.put("ab")
    shelf.cache.reset()
    assert shelf.cache.host_pages.num_free == 4
    assert shelf.match("ab") == (0, 0)
    shelf.cache.check_integrity()
    assert shelf.pool.open() is shelf.pool.open(), "memory is taken once"


@pytest.mark.parametrize("seed", range(24))
def test_random_requests_find_what_was_computed_for_them(monkeypatch, seed):
    rng = random.Random(seed)
    monkeypatch.setattr(hiradix_cache, "_AT_ONCE", rng.choice([0, 3, 256]))
    policy = rng.choice(["write_through", "write_back"])
    shelf = Shelf(12, rng.choice([3, 9, 40]), policy, rng.choice([1, 4]))
    held = []
    for _ in range(120):
        letters = "".join(rng.choices("abc", k=rng.randint(1, 6)))
        if held and rng.random() < 0.5:
            shelf.manager.unlock(held.pop(rng.randrange(len(held))))
        elif len(held) < 1 and rng.random() < 0.4:
            held.append(shelf.hold(letters))
        shelf.put(letters)
    assert shelf.cache.loaded_tokens > 0
    for handle in held:
        shelf.manager.unlock(handle)
    shelf.manager.check_integrity()


# -- broken books --------------------------------------------------------------


def break_twice(cache):
    first, second = list(cache._nodes())[:2]
    first.host = second.host


def break_lost(cache):
    cache.host_pages.allocate(1)


def break_nowhere(cache):
    node = named(cache, "cd")
    cache.host_pages.free(node.host)
    node.host = node.host[:0]


def break_gap(cache):
    node = named(cache, "ab")
    child = hiradix_cache.RadixTreeNode(cache._key_fn)
    child.set_key_value(node._key + 9, torch.tensor([7, 6], dtype=torch.int32))
    child.set_parent(named(cache, "cd"))
    cache.evictable_size += 2
    cache._enqueue(child)


def break_part(cache):
    node = named(cache, "ab")
    node.host = node.host[:1]


def break_queue(cache):
    cache._host_queue._waiting.discard(named(cache, "cd"))


@pytest.mark.parametrize(
    "fault, message",
    [
        (break_twice, "a host page is in two nodes"),
        (
            break_lost,
            "host pages do not add up: 3 free, 4 in the tree, 8 in all",
        ),
        (break_nowhere, "pages on no tier"),
        (break_gap, "below one that is not"),
        (break_part, "for some of its tokens only"),
        (break_queue, "not in the queue"),
    ],
)
def test_broken_books_are_noticed(exact, fault, message):
    shelf = Shelf(4, 8)
    shelf.put("cd")
    shelf.put("ab")
    shelf.manager._free(shelf.cache.evict(2))
    assert words(shelf.cache, "device") == ["ab"]
    fault(shelf.cache)
    with pytest.raises(RuntimeError, match=message):
        shelf.cache.check_integrity()


# -- how large, and which cache ------------------------------------------------


def test_memory_is_divided_among_ranks():
    pool = MHAKVCache(2, 3, 8, 4, 16, torch.bfloat16, CPU)
    size = 2 * 3 * 16 * 2 * 8 * 2
    assert pages_within(pool, 100 * size / 2**30, 1) == 100
    assert pages_within(pool, 100 * size / 2**30, 4) == 25
    assert pages_within(pool, 1.5 * size / 2**30, 1) == 1
    with pytest.raises(ValueError, match="no page: one takes"):
        pages_within(pool, size / 2**30, 2)
    with pytest.raises(
        ValueError, match="host_cache_gb is 1e\\+09, this machine"
    ):
        pages_within(pool, 1e9, 1)


def test_the_cache_goes_with_the_pool():
    shelf = Shelf(4, 4)
    for name in ("radix", "auto"):
        assert type(create_prefix_cache(CPU, name)) is type(shelf.cache)
    set_global_ctx(Context(1))
    plain = create_prefix_cache(CPU, "auto")
    assert type(plain) is RadixPrefixCache
    assert plain.match_prefix(shelf.ids("ab")).host_handle is None
    with pytest.raises(TypeError, match="nothing on the host"):
        plain.load_prefix(plain.match_prefix(shelf.ids("")).cuda_handle, None)
