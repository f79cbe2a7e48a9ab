"""The pool of 8 bits: how far off it may be, where things go, and if it answers."""

import pytest
import torch

from minisgl.kvcache import MHAKVCache
from minisgl.kvcache.int8_pool import Int8KVCache, dequantise, quantise
from tests.paged import CPU, Paged, load_once
from tests.parity import model_under_test

FOLDER = model_under_test("qwen3-tiny")
RNG = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=RNG)


def make(kind=Int8KVCache, pages=8, page_size=4, dtype=torch.float32):
    return kind(2, 3, 16, pages, page_size, dtype, CPU)


def test_a_number_is_at_most_half_a_step_off():
    x = random(50, 3, 16) * torch.logspace(-4, 4, 50)[:, None, None]
    codes, scales = quantise(x)
    assert codes.dtype == torch.int8 and scales.dtype == torch.float32
    assert scales.shape == (50, 3, 1)
    off = (dequantise(codes, scales, torch.float32) - x).abs()
    assert (off <= scales / 2 * 1.001).all()


def test_the_largest_of_a_row_is_kept_whatever_its_sign():
    x = torch.tensor([[0.5, -2.0, 1.0], [3.0, 0.0, -3.0]])
    codes, scales = quantise(x)
    assert codes.tolist() == [[32, -127, 64], [127, 0, -127]]
    back = dequantise(codes, scales, torch.float32)
    assert torch.equal(back.abs().amax(-1), x.abs().amax(-1))


def test_zeros_stay_zeros():
    x = torch.zeros(2, 16)
    x[1, 3] = 1.0
    back = dequantise(*quantise(x), torch.float32)
    assert torch.equal(back, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_reads_back_what_was_stored_and_where(dtype):
    pool, exact = make(dtype=dtype), make(MHAKVCache, dtype=dtype)
    for layer in (2, 0):
        k, v = random(5, 32).to(dtype), random(5, 32).to(dtype)
        slots = torch.tensor([30, 2, 3, 17, 0], dtype=torch.int32)
        for one in (pool, exact):
            one.store_kv(k, v, slots, layer)
    for layer in range(3):
        for name in ("k_cache", "v_cache"):
            mine, theirs = (getattr(p, name)(layer) for p in (pool, exact))
            assert mine.shape == theirs.shape and mine.dtype == dtype
            torch.testing.assert_close(mine, theirs, rtol=0.01, atol=0.03)


def test_a_slot_can_be_written_again():
    pool = make()
    for size in (100.0, 0.01):
        k = random(1, 32) * size
        pool.store_kv(k, k, torch.tensor([5]), 1)
        kept = pool.k_cache(1).flatten(0, 1)[5]
        torch.testing.assert_close(
            kept.flatten(), k[0], rtol=0.01, atol=size / 50
        )


def test_it_is_a_third_of_float32_or_less():
    exact = make(MHAKVCache)
    whole = sum(exact.k_cache(i).nbytes * 2 for i in range(3))
    assert make().nbytes <= whole / 3


def test_a_model_hardly_notices():
    _, config = load_once(FOLDER)
    sizes = config.num_kv_heads, config.num_layers, config.head_dim
    pool = Int8KVCache(*sizes, 64, 4, torch.float32, CPU)
    prompt = [51, 258, 220, 447, 313, 54, 460, 30, 7]
    exact = Paged(FOLDER, 4).alone(prompt, 0, 6)
    mine = Paged(FOLDER, 4, 64, pool=pool).alone(prompt, 0, 6)
    assert torch.equal(mine.argmax(-1), exact.argmax(-1))
    off = (mine - exact).std() / exact.std()
    assert 0 < off < 0.1
