"""A radix cache without an engine: made, filled, drawn and audited by a test."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from minisgl.core import Context, set_global_ctx
from minisgl.kvcache import BaseCacheHandle
from minisgl.kvcache.radix_cache import RadixPrefixCache, RadixTreeNode


def make_cache(page_size: int = 1) -> RadixPrefixCache:
    set_global_ctx(Context(page_size))
    return RadixPrefixCache(torch.device("cpu"))


def tensor(numbers: Iterable[int]) -> torch.Tensor:
    return torch.tensor([*numbers], dtype=torch.int32)


def pages_of(words: str, page_size: int) -> list[int]:
    """Token ids: a page for each letter, all of its tokens that letter's code."""
    return [ord(letter) for letter in words for _ in range(page_size)]


def slots_of(pages: Sequence[int], page_size: int) -> list[int]:
    """The KV slots of whole pages."""
    return [page * page_size + i for page in pages for i in range(page_size)]


def offer(cache: RadixPrefixCache, words: str, first_page: int) -> Any:
    """Insert a page for each letter, in consecutive pages of the pool."""
    size = cache.page_size
    pages = range(first_page, first_page + len(words))
    return cache.insert_prefix(
        tensor(pages_of(words, size)), tensor(slots_of(pages, size))
    )


def find(cache: RadixPrefixCache, words: str) -> BaseCacheHandle:
    return cache.match_prefix(
        tensor(pages_of(words, cache.page_size))
    ).cuda_handle


def found_pages(cache: RadixPrefixCache, words: str) -> list[int]:
    """The pages of the longest known prefix."""
    return to_pages(cache, find(cache, words).get_matched_indices())


def to_pages(cache: RadixPrefixCache, slots: torch.Tensor) -> list[int]:
    """Whole pages from all of their slots, in order."""
    pages = [
        slot // cache.page_size for slot in slots[:: cache.page_size].tolist()
    ]
    assert slots.tolist() == slots_of(pages, cache.page_size), "not whole pages"
    return pages


def draw(cache: RadixPrefixCache) -> dict[str, Any]:
    """The tree as nested dicts, a node's name being a letter for each page."""

    def below(node: RadixTreeNode) -> dict[str, Any]:
        return {name(child): below(child) for child in node.children.values()}

    def name(node: RadixTreeNode) -> str:
        return "".join(map(chr, node._key[:: cache.page_size].tolist()))

    return below(cache.root_node)


def node_of(cache: RadixPrefixCache, words: str) -> RadixTreeNode:
    """The node where exactly this path ends."""
    handle = find(cache, words)
    assert handle.cached_len == len(words) * cache.page_size
    return handle.node


def audit(cache: RadixPrefixCache, free: Sequence[int], pages: int) -> None:
    """Count everything anew, page by page, and compare with the counters."""
    cache.check_integrity()
    nodes = [*cache._nodes()]
    sizes = cache.size_info
    assert sizes.total_size == sum(node.length for node in nodes)
    idle = [node.length for node in nodes if node.ref_count == 0]
    assert sizes.evictable_size == sum(idle)
    assert min([*sizes, *(node.ref_count for node in nodes)]) >= 0
    held = [page for node in nodes for page in to_pages(cache, node.value)]
    assert sorted([*held, *free]) == [*range(pages)]
    for node in nodes:
        assert node.parent.children[cache._key_fn(node._key)] is node
