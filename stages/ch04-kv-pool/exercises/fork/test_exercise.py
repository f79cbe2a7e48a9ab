"""Forks: they answer as if alone, share what is full, and copy what is not."""

import pytest
import torch

from minisgl.scheduler.fork import ForkingManager, copy_page
from tests.handmade import make_req
from tests.paged import Paged, answer
from tests.parity import model_under_test

FOLDER = model_under_test("qwen3-tiny")
PROMPT = [51, 258, 220, 447, 313, 54, 460, 30, 7]
PAGES = 64


def start(page_size, length=9, max_tokens=6):
    """A pool under a manager that can fork, and a request that ran its prompt."""
    paged = Paged(FOLDER, page_size, PAGES)
    table = paged.ctx.page_table
    paged.manager = ForkingManager(PAGES, page_size, table)
    req = make_req(PROMPT[:length], 0, max_tokens)
    paged.step([req], "prefill")
    return paged, req


def used(paged):
    left = paged.manager.available_size // paged.manager.page_size
    return PAGES - left


def begin(req, token):
    """Let a fork go on with another first token."""
    req.input_ids[-1] = token


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("length", [3, 4, 8, 9])
def test_every_fork_goes_on_as_if_alone(page_size, length):
    paged, req = start(page_size, length)
    forks = [req, *(paged.manager.fork(req, r, paged.pool) for r in (1, 2))]
    for token, one in enumerate(forks, 100):
        begin(one, token)
    while req.can_decode:
        paged.step(forks)
    for token, one in enumerate(forks, 100):
        alone, other = Paged(FOLDER, page_size, PAGES), PROMPT[:length]
        alone_req = make_req([*other, token], 0, 5)
        alone.step([alone_req], "prefill")
        while alone_req.can_decode:
            alone.step([alone_req])
        assert answer(one)[-5:] == answer(alone_req)


def test_full_pages_are_shared_and_one_is_copied():
    paged, req = start(page_size=4)  # 9 tokens: two full pages, one with 1
    before = used(paged)
    fork = paged.manager.fork(req, 1, paged.pool)
    assert used(paged) == before + 1
    mine, theirs = paged.ctx.page_table[:2, :9].tolist()
    assert mine[:8] == theirs[:8]
    assert mine[8] != theirs[8]
    assert fork.cached_len == req.cached_len == 9


def test_nothing_is_copied_where_pages_are_full():
    paged, req = start(page_size=4, length=8)
    before = used(paged)
    paged.manager.fork(req, 1, paged.pool)
    assert used(paged) == before


def test_the_fork_has_the_counters_of_its_source_and_tensors_of_its_own():
    paged, req = start(page_size=4)
    fork = paged.manager.fork(req, 3, paged.pool)
    assert (fork.table_idx, fork.uid) == (3, 3)
    for name in ("cached_len", "device_len", "max_device_len", "remain_len"):
        assert getattr(fork, name) == getattr(req, name), name
    token = int(req.input_ids[-1])
    begin(fork, token + 1)
    assert int(req.input_ids[-1]) == token


def test_a_fork_of_a_fork():
    paged, req = start(page_size=4)
    second = paged.manager.fork(req, 1, paged.pool)
    begin(second, 100)
    paged.step([second])
    third = paged.manager.fork(second, 2, paged.pool)
    while third.can_decode:
        paged.step([second, third])
    assert answer(second)[1:] == answer(third)


def test_copy_page_copies_a_part_in_every_layer():
    paged, _ = start(page_size=4)
    for layer in range(paged.pool.num_layers):
        for cache in (paged.pool.k_cache(layer), paged.pool.v_cache(layer)):
            cache[20] = torch.randn_like(cache[20])
            cache[21] = -1.0
    copy_page(paged.pool, 20, 21, 3)
    for layer in range(paged.pool.num_layers):
        for cache in (paged.pool.k_cache(layer), paged.pool.v_cache(layer)):
            assert torch.equal(cache[21, :3], cache[20, :3])
            assert (cache[21, 3] == -1.0).all()


def test_without_a_page_left_it_says_so():
    paged, req = start(page_size=4)
    paged.manager.fork(req, 1, paged.pool)
    paged.manager._allocate(PAGES - used(paged))
    with pytest.raises(RuntimeError, match="1 pages wanted, 0 are left"):
        paged.manager.fork(req, 2, paged.pool)
