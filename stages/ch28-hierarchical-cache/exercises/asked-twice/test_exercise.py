"""Which nodes are copied after which match, and what a small host then keeps."""

import pytest
import torch

from minisgl.kvcache import hiradix_cache
from minisgl.kvcache.selective import SelectivePrefixCache
from tests.tiers import Shelf, named, words


@pytest.fixture
def shelf():
    return make(8, 4)


def make(pages, host, size=4):
    """A shelf whose cache is the one of this exercise."""
    shelf = Shelf(pages, host, "write_back", size)
    shelf.cache = SelectivePrefixCache(torch.device("cpu"), shelf.pool)
    shelf.manager.prefix_cache = shelf.cache
    return shelf


def on_host(shelf):
    return words(shelf.cache, "host")


def test_the_second_match_copies(shelf):
    shelf.put("abcd")
    assert on_host(shelf) == []
    shelf.match("abcd")
    assert on_host(shelf) == []
    shelf.match("abcd")
    assert on_host(shelf) == ["abcd"]


def test_only_what_was_matched_is_copied(shelf):
    shelf.put("abcd")
    shelf.match("abxy")
    shelf.match("ab")
    assert on_host(shelf) == ["ab"]
    assert words(shelf.cache, "device") == ["ab", "cd"]
    shelf.match("abcd")
    shelf.match("abcd")
    assert on_host(shelf) == ["ab", "cd"]


def test_a_match_is_a_use_of_its_whole_path(shelf):
    shelf.put("abcd")
    shelf.match("ab")
    shelf.match("abcd")
    assert on_host(shelf) == ["ab"]
    shelf.match("abcd")
    assert on_host(shelf) == ["ab", "cd"]


def test_a_split_forgets_no_use(shelf):
    shelf.put("abcd")
    shelf.match("abcd")
    shelf.match("abx")
    assert on_host(shelf) == ["ab"], "twice: with its end, and without"
    assert shelf.cache._count(named(shelf.cache, "cd")) == 1


def test_a_node_that_was_evicted_in_part_is_counted_once_a_match(monkeypatch):
    monkeypatch.setattr(hiradix_cache, "_AT_ONCE", 0)
    shelf = make(4, 8)
    shelf.put("abcd")
    for _ in range(3):
        shelf.match("abcd")
    # One page after the other leaves the device: the node is split twice.
    for letters in ("x", "yz"):
        shelf.put(letters)
    parts = [node for node in shelf.cache._nodes() if len(node.host)]
    assert len(parts) > 1 and shelf.match("abcd")[1] == 4
    assert {shelf.cache._count(node) for node in parts} == {4}


def test_a_node_that_nobody_came_back_for_is_gone():
    shelf = make(4, 8)
    shelf.put("abcd")
    shelf.put("wxyz")
    assert shelf.match("abcd") == (0, 0)
    assert on_host(shelf) == []


def test_a_match_on_the_host_is_a_use_too():
    shelf = make(4, 8)
    shelf.put("abcd")
    shelf.match("abcd")
    shelf.match("abcd")
    shelf.put("wxyz")
    assert shelf.match("abcd") == (0, 4)
    assert shelf.cache._count(named(shelf.cache, "abcd")) == 3
    assert shelf.put("abcd") == (0, 4)


def test_a_reset_forgets_uses(shelf):
    shelf.put("abcd")
    shelf.match("abcd")
    shelf.cache.reset()
    shelf.manager.free_pages = torch.arange(8, dtype=torch.int32)
    shelf.put("abcd")
    shelf.match("abcd")
    assert on_host(shelf) == []


@pytest.mark.parity
def test_what_comes_again_is_not_driven_out():
    """A page of content that is mixed up fails in `Shelf.check`."""
    shelf, found = make(8, 4), []
    for turn in range(30):
        for place in range(3):
            first = 300 + 12 * turn + 4 * place
            shelf.put("".join(map(chr, range(first, first + 4))))
        found.append(shelf.put("abcd")[1])
        if turn == 0:
            shelf.match("abcd")
            shelf.match("abcd")
    assert found == [0] + [4] * 29
    shelf.manager.check_integrity()
