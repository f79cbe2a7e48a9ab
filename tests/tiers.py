"""A hierarchical cache under a scheduler, audited by a test after every step."""

import random
import zlib
from pathlib import Path
from typing import Any

import torch

from minisgl.core import Context, set_global_ctx
from minisgl.kvcache import BaseCacheHandle, MHAKVCache, TieredKVCache
from minisgl.kvcache.hiradix_cache import HiRadixPrefixCache
from minisgl.kvcache.radix_tree import RadixTreeNode
from minisgl.scheduler.cache import CacheManager
from tests.driver import Driver
from tests.radix import pages_of, tensor, to_pages

PER_TOKEN = 3 * 2 * 2 * 64 * 4
"""Bytes of a token's keys and values in qwen3-tiny, in float32."""


def gib(tokens: int, per_token: int = PER_TOKEN) -> float:
    """A `host_cache_gb` that holds exactly so many tokens."""
    return (tokens + 0.5) * per_token / 2**30


class TieredDriver(Driver):
    """A driver whose pool has `host_tokens` tokens of host memory below it."""

    def __init__(
        self, folder: str | Path, *, host_tokens: int, **settings: Any
    ) -> None:
        super().__init__(folder, host_cache_gb=gib(host_tokens), **settings)

    @property
    def cache(self) -> HiRadixPrefixCache:
        cache = self.scheduler.cache_manager.prefix_cache
        assert isinstance(cache, HiRadixPrefixCache)
        return cache

    def step(self) -> Any:
        sent = super().step()
        self.audit()
        return sent

    def audit(self) -> None:
        """Count all pages of both tiers; where a node has both, they are equal."""
        cache, manager = self.cache, self.scheduler.cache_manager
        cache.check_integrity()
        for node in cache._nodes():
            if len(node.value) and len(node.host):
                slots = torch.tensor(to_pages(cache, node.value))
                self._equal(slots, node.host)
        in_tree = [n.value for n in cache._nodes()]
        slots = torch.cat([cache.root_node.value, *in_tree])
        pages = [*to_pages(cache, slots), *manager.free_pages.tolist()]
        assert len(pages) == len(set(pages)), "a page is held twice"

    def _equal(self, pages: torch.Tensor, on_host: torch.Tensor) -> None:
        transfers = self.cache._transfers
        transfers._stream.synchronize()
        for layer, caches in enumerate(transfers._caches):
            for side, cache in enumerate(caches):
                copy = transfers._host[layer, side, on_host]
                differ = cache[pages].cpu().view(torch.float32) - copy.view(
                    torch.float32
                )
                # Not bit by bit: a node that was computed anew while its copy
                # lay on the host differs in rounding.
                assert differ.abs().max() < 1e-4, "the copies differ"

    def assert_every_page(self) -> None:
        """Of the device, and of the host once all is dropped there."""
        super().assert_every_page()
        cache = self.cache
        while (node := cache._host_queue.pop()) is not None:
            cache._release(node)
        assert cache.host_pages.num_free == cache.host_pages.num_pages
        assert not cache.root_node.children
        cache.check_integrity()


def family(seed: int, count: int, longest: int) -> list[list[int]]:
    """Prompts that branch off one another at random places."""
    rng = random.Random(seed)
    found: list[list[int]] = [[rng.randrange(500) for _ in range(longest)]]
    while len(found) < count:
        kept = rng.choice(found)
        kept = kept[: rng.randrange(len(kept) + 1)]
        new = [rng.randrange(500) for _ in range(rng.randint(1, longest // 2))]
        found.append((kept + new)[:longest])
    return found


def letters_of(cache: HiRadixPrefixCache, node: RadixTreeNode) -> str:
    """A node's tokens as letters, one for each page."""
    return "".join(map(chr, node._key[:: cache.page_size].tolist()))


def named(cache: HiRadixPrefixCache, letters: str) -> RadixTreeNode:
    """The one node that holds these letters."""
    found = [n for n in cache._nodes() if letters_of(cache, n) == letters]
    assert len(found) == 1
    return found[0]


def words(cache: HiRadixPrefixCache, where: str) -> list[str]:
    """The nodes that are on a tier, device or host, as their letters."""
    kept = {"device": lambda n: n.value, "host": lambda n: n.host}[where]
    nodes = [node for node in cache._nodes() if len(kept(node))]
    return sorted(letters_of(cache, node) for node in nodes)


class Shelf:
    """A hierarchical cache and its pools, filled by hand: a letter is a page.

    What a page holds tells which letters led to it, so that a page that was mixed
    up is noticed.
    """

    def __init__(
        self,
        pages: int,
        host: int,
        policy: str = "write_through",
        size: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.size, self.pages = size, pages
        plain = MHAKVCache(2, 3, 8, pages, size, dtype, torch.device("cpu"))
        self.plain, self.pool = plain, TieredKVCache(plain, host, policy)
        context = Context(size)
        context.kv_cache = self.pool
        set_global_ctx(context)
        table = torch.zeros(1, 64 * size, dtype=torch.int32)
        self.manager = CacheManager(pages, size, table)
        cache = self.manager.prefix_cache
        assert isinstance(cache, HiRadixPrefixCache)
        self.cache = cache

    def ids(self, letters: str) -> torch.Tensor:
        return tensor(pages_of(letters, self.size))

    def match(self, letters: str) -> tuple[int, int]:
        """How many letters are known on the device, and in all."""
        found = self.cache.match_prefix(self.ids(letters))
        assert found.host_handle is not None
        lengths = found.cuda_handle.cached_len, found.host_handle.cached_len
        return lengths[0] // self.size, lengths[1] // self.size

    def hold(self, letters: str) -> BaseCacheHandle:
        """Match and lock, bring what the host has, and let a forward go over it."""
        found = self.cache.match_prefix(self.ids(letters))
        self.manager.lock(found.cuda_handle)
        handle = self.manager.load(found)
        self.forward()
        self.check(letters[: handle.cached_len // self.size], handle)
        return handle

    def put(self, letters: str) -> tuple[int, int]:
        """A request from its match to its end; returns what `match` would have."""
        known = self.match(letters)
        held = self.hold(letters)
        assert held.cached_len == known[1] * self.size
        missing = len(letters) - known[1]
        slots = held.get_matched_indices()
        if missing:
            pages = self.manager._allocate(missing)
            new = self.manager._page_to_token(pages)
            self.fill(letters, known[1], pages)
            slots = torch.cat([slots, new])
        had, handle = self.cache.insert_prefix(self.ids(letters), slots)
        assert had == held.cached_len
        self.manager.unlock(held)
        self.check(letters, handle)
        self.audit()
        return known

    def fill(self, letters: str, first: int, pages: torch.Tensor) -> None:
        for place, page in enumerate(pages.tolist(), first):
            mark = _mark(letters[: place + 1])
            self.plain._buffer[:, :, page] = mark.to(self.plain.dtype)

    def forward(self) -> None:
        for layer in range(self.pool.num_layers):
            self.pool.k_cache(layer)
            self.pool.v_cache(layer)

    def check(self, letters: str, handle: BaseCacheHandle) -> None:
        """What the device holds of this path is what was computed for it."""
        pages = to_pages(self.cache, handle.get_matched_indices())
        for place, page in enumerate(pages):
            mark = _mark(letters[: place + 1]).to(self.plain.dtype)
            found = self.plain._buffer[:, :, page].float()
            assert (found == mark.float()).all(), f"page {place} of {letters}"

    def audit(self) -> None:
        self.cache.check_integrity()
        audit_pages(self.cache, self.manager.free_pages, self.pages)


def _mark(letters: str) -> torch.Tensor:
    # Small, so that a float of 8 bits holds it.
    return torch.tensor(float(zlib.crc32(letters.encode()) % 15))


def audit_pages(
    cache: HiRadixPrefixCache, free: torch.Tensor, pages: int
) -> None:
    """Every page of the device is free or in one node."""
    held = torch.cat(
        [cache.root_node.value, *(n.value for n in cache._nodes())]
    )
    assert sorted([*to_pages(cache, held), *free.tolist()]) == [*range(pages)]
