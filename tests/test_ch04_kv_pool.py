"""The KV pool: slots and pages, rows, who gets which page, and the same tokens."""

from collections import Counter

import pytest
import torch

from minisgl.core import Context, set_global_ctx
from minisgl.kvcache import BaseKVCachePool, MHAKVCache, create_kvcache_pool
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.table import TableManager
from minisgl.utils import div_ceil
from tests.handmade import make_req
from tests.paged import CPU, Paged, answer, load_once
from tests.parity import assert_parity, model_under_test, prompts, reference
from tools.models import model_path

FOLDER = model_under_test("qwen3-tiny")
PAGE_SIZES = [1, 4, 16]


# The pool: two layers, three kv heads of five numbers.


def make_pool(pages=6, page_size=4):
    return MHAKVCache(3, 2, 5, pages, page_size, torch.float32, CPU)


def rows(n, seed):
    """n tokens' keys or values as a projection gives them: [n, 3 * 5]."""
    return torch.randn(n, 15, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_slot_s_is_place_s_mod_page_size_of_page_s_div_page_size(page_size):
    pool = make_pool(24 // page_size + 1, page_size)
    k, v = rows(3, 0), rows(3, 1)
    slots = [17, 0, 22]
    pool.store_kv(k, v, torch.tensor(slots, dtype=torch.int32), layer_id=1)
    for i, slot in enumerate(slots):
        page, place = divmod(slot, page_size)
        assert torch.equal(pool.k_cache(1)[page, place], k[i].view(3, 5))
        assert torch.equal(pool.v_cache(1)[page, place], v[i].view(3, 5))


def test_a_store_leaves_other_slots_and_other_layers_alone():
    pool = make_pool()
    everything = torch.arange(24, dtype=torch.int32)
    for layer in (0, 1):
        pool.store_kv(rows(24, layer), rows(24, layer + 2), everything, layer)
    before = [pool.k_cache(0).clone(), pool.v_cache(0).clone()]
    k1, v1 = pool.k_cache(1).clone(), pool.v_cache(1).clone()
    pool.store_kv(rows(1, 9), rows(1, 8), torch.tensor([6]), layer_id=1)
    assert torch.equal(pool.k_cache(0), before[0])
    assert torch.equal(pool.v_cache(0), before[1])
    k1[1, 2], v1[1, 2] = rows(1, 9).view(3, 5), rows(1, 8).view(3, 5)
    assert torch.equal(pool.k_cache(1), k1)
    assert torch.equal(pool.v_cache(1), v1)


def test_the_memory_is_taken_once_and_holds_zeros():
    pool = make_pool(pages=6, page_size=4)
    shape = (6, 4, 3, 5)
    for cache in (pool.k_cache, pool.v_cache):
        assert cache(0).shape == cache(1).shape == shape
        assert not cache(1).any()
    storage = pool.k_cache(0).untyped_storage()
    assert storage.nbytes() == 2 * 2 * 6 * 4 * 3 * 5 * 4
    assert pool.v_cache(1).untyped_storage().data_ptr() == storage.data_ptr()
    pool.store_kv(rows(1, 0), rows(1, 1), torch.tensor([3]), layer_id=0)
    assert pool.k_cache(0).untyped_storage().data_ptr() == storage.data_ptr()


def test_the_pool_of_a_model_has_its_sizes_and_says_what_it_is():
    config = load_once(model_path("qwen3-tiny"))[1]
    pool = create_kvcache_pool(config, 7, 2, torch.bfloat16, CPU)
    assert isinstance(pool, BaseKVCachePool)
    heads, dim = config.num_kv_heads, config.head_dim
    assert pool.k_cache(config.num_layers - 1).shape == (7, 2, heads, dim)
    assert pool.num_layers == config.num_layers
    assert pool.dtype == pool.v_cache(0).dtype == torch.bfloat16
    assert pool.device == CPU
    with pytest.raises(IndexError):
        pool.k_cache(config.num_layers)


# Rows of the page table and of the token pool.


def test_every_row_is_handed_out_once_and_can_come_back():
    table = TableManager(3, torch.zeros(3, 8, dtype=torch.int32))
    assert table.available_size == 3
    taken = [table.allocate() for _ in range(3)]
    assert sorted(taken) == [0, 1, 2]
    assert table.available_size == 0
    with pytest.raises(IndexError):
        table.allocate()
    table.free(taken[1])
    assert table.available_size == 1
    assert table.allocate() == taken[1]


def test_the_token_pool_lies_beside_the_page_table():
    page_table = torch.ones(3, 8, dtype=torch.int32)
    table = TableManager(3, page_table)
    assert table.page_table is page_table
    assert table.token_pool.shape == (3, 8)
    assert table.token_pool.dtype == torch.int32
    table.token_pool[0, 0] = 5
    assert page_table.eq(1).all()


# Who gets which page.


def make_manager(pages, page_size, length=32, n_rows=4):
    """A manager over a page table whose unwritten entries are -1."""
    set_global_ctx(Context(page_size))
    table = torch.full((n_rows, length), -1, dtype=torch.int32)
    return CacheManager(pages, page_size, table), table


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_pages_are_whole_disjoint_and_as_few_as_hold_the_tokens(page_size):
    manager, table = make_manager(64, page_size, length=64)
    lengths = [1, 5, 16, 17]
    reqs = [make_req([7] * n, row, 8) for row, n in enumerate(lengths)]
    manager.allocate_paged(reqs)
    seen = []
    for row, n in enumerate(lengths):
        held = div_ceil(n, page_size) * page_size
        slots = table[row, :held].view(-1, page_size)
        assert slots.ge(0).all() and slots.lt(64 * page_size).all()
        assert (slots[:, 0] % page_size == 0).all()
        places = slots - slots[:, :1]
        assert places.eq(torch.arange(page_size)).all()
        assert table[row, held:].eq(-1).all(), "no page that is not needed"
        seen += (slots[:, 0] // page_size).tolist()
    assert max(Counter(seen).values()) == 1
    assert manager.available_size == (64 - len(seen)) * page_size


def test_the_last_page_is_filled_up_before_the_next_one():
    manager, table = make_manager(8, 4)
    a, b = make_req([7] * 3, 0, 20), make_req([7] * 4, 2, 20)
    free = []
    for _ in range(6):
        manager.allocate_paged([a, b])
        free.append(manager.available_size // 4)
        a.complete_one()
        b.complete_one()
    # a has 3, 4 ... 8 tokens, b 4, 5 ... 9: pages 1 1 2 2 2 2 and 1 2 2 2 2 3
    assert free == [6, 5, 4, 4, 4, 3]
    assert table[1].eq(-1).all() and table[3].eq(-1).all()
    held = torch.cat([table[0, :8], table[2, :12]])
    assert held.unique().numel() == 20


def test_what_is_cached_keeps_its_slots():
    manager, table = make_manager(8, 4)
    req = make_req([7] * 6, 1, 20)
    manager.allocate_paged([req])
    first = table[1, :8].clone()
    for _ in range(3):
        req.complete_one()
    manager.allocate_paged([req])
    assert torch.equal(table[1, :8], first)
    assert table[1, 8:12].ge(0).all() and table[1, 12:].eq(-1).all()


def test_the_pool_can_be_used_up_and_then_says_so():
    manager, _ = make_manager(3, 4)
    assert manager.available_size == 12
    manager.allocate_paged([make_req([7] * 12, 0, 4)])
    assert manager.available_size == 0
    with pytest.raises(RuntimeError):
        manager.allocate_paged([make_req([7], 1, 4)])


@pytest.mark.until("ch08", "the text is the bump allocator's")
def test_the_error_counts_the_pages():
    manager, _ = make_manager(3, 4)
    manager.allocate_paged([make_req([7] * 4, 0, 4)])
    with pytest.raises(RuntimeError, match=r"^3 pages wanted, 2 are left$"):
        manager.allocate_paged([make_req([7] * 9, 1, 4)])


# The same tokens, wherever they lie.


class Growing(BaseKVCachePool):
    """The cache of step 0 behind the pool's interface, for a single request.

    Two tensors a layer, made longer by `torch.cat`, with token i at slot i.
    """

    def __init__(self, config):
        empty = torch.zeros(1, 0, config.num_kv_heads, config.head_dim)
        self.k = [empty] * config.num_layers
        self.v = [empty] * config.num_layers

    def k_cache(self, index):
        return self.k[index]

    def v_cache(self, index):
        return self.v[index]

    def store_kv(self, k, v, out_loc, layer_id):
        start = self.k[layer_id].shape[1]
        assert out_loc.tolist() == list(range(start, start + len(k)))
        for kept, new in ((self.k, k), (self.v, v)):
            old = kept[layer_id]
            new = new.reshape(1, len(new), *old.shape[2:])
            kept[layer_id] = torch.cat([old, new], dim=1)

    device, dtype = CPU, torch.float32

    @property
    def num_layers(self):
        return len(self.k)


def contiguous(ids, tokens):
    """The logits of a request alone over growing tensors, [tokens, vocab]."""
    pool = Growing(load_once(FOLDER)[1])
    alone = Paged(FOLDER, 1, 0, rows=1, pool=pool)
    alone.manager.allocate_paged = lambda reqs: None
    alone.ctx.page_table[0] = torch.arange(alone.ctx.page_table.shape[1])
    return alone.alone(ids, 0, tokens)


def interleave(paged, asked, tokens):
    """Each request joins when the one before has made two tokens; logits by request.

    A step prefills one request or decodes all that run.
    """
    waiting = [make_req(ids, row, tokens) for row, ids in enumerate(asked)]
    found = {req: [] for req in waiting}
    running = []
    while waiting or running:
        if waiting and (not running or len(found[running[-1]]) >= 2):
            batch, phase = [waiting.pop(0)], "prefill"
            running += batch
        else:
            batch, phase = list(running), "decode"
        for req, logits in zip(batch, paged.step(batch, phase), strict=True):
            found[req].append(logits)
        running = [req for req in running if req.can_decode]
    return {req: torch.stack(logits) for req, logits in found.items()}


@pytest.mark.parity
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_paged_equals_contiguous_and_transformers(page_size):
    asked, tokens = prompts(FOLDER)[2:6], 64
    paged = Paged(FOLDER, page_size, 512 // page_size)
    found = interleave(paged, asked, tokens)
    table = paged.ctx.page_table
    first, second = (table[row, ::page_size] // page_size for row in (0, 1))
    mixed = first[: 64 // page_size].max() > second[0]
    assert mixed, "pages of the requests do not alternate: the test is too easy"
    for req, ids in zip(found, asked, strict=True):
        assert_parity(answer(req), reference(FOLDER, ids, tokens))
        torch.testing.assert_close(
            found[req], contiguous(ids, tokens), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parity
@pytest.mark.parametrize("model", ["qwen2-tiny", "llama3-tiny", "mistral-tiny"])
def test_parity_of_the_other_families(model):
    folder, tokens = model_path(model), 32
    asked = prompts(model)[1:4]
    found = interleave(Paged(folder, 4, 64), asked, tokens)
    for req, ids in zip(found, asked, strict=True):
        assert_parity(answer(req), reference(folder, ids, tokens))


def test_old_content_of_pages_does_not_show():
    asked = prompts(FOLDER)[2:5]
    clean = interleave(Paged(FOLDER, 4, 64), asked, 8)
    used = Paged(FOLDER, 4, 64)
    for layer in range(used.pool.num_layers):
        used.pool.k_cache(layer).fill_(50.0)
        used.pool.v_cache(layer).fill_(-50.0)
    found = interleave(used, asked, 8)
    for mine, theirs in zip(found.values(), clean.values(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_prompt_in_pieces_continues_on_its_pages():
    ids = prompts(FOLDER)[5]
    whole = Paged(FOLDER, 4).alone(ids, 0, 1)
    paged = Paged(FOLDER, 4)
    cached = 0
    for end in (5, 6, 16, len(ids)):
        piece = make_req(ids[:end], 0, 1)
        piece.cached_len = cached
        logits = paged.step([piece], "prefill")
        cached = end
    torch.testing.assert_close(logits, whole, rtol=1e-4, atol=1e-4)
