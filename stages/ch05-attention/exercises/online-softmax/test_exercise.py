"""Blocks: in any size, in any order, and without NaN they make the whole."""

from functools import reduce
from itertools import permutations

import pytest
import torch

from minisgl.attention.blockwise import (
    BlockwiseBackend,
    Partial,
    attend_block,
    merge,
)
from tests.handmade import make_req
from tests.paged import Paged, answer
from tests.parity import assert_parity, model_under_test, prompts, reference

FOLDER = model_under_test("qwen3-tiny")
RNG = torch.Generator().manual_seed(0)


def random(*shape):
    return torch.randn(*shape, generator=RNG)


def inputs(n=5, m=12, dim=8):
    q, k, v = random(2, 3, n, dim), random(2, 3, m, dim), random(2, 3, m, dim)
    seen = torch.ones(n, m, dtype=torch.bool).tril(m - n).expand(2, 1, n, m)
    return q, k, v, seen


def whole(q, k, v, seen):
    """Attention by its definition, in float64."""
    scores = q.double() @ k.double().transpose(-1, -2) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ v.double()).float(), scores.logsumexp(
        -1
    ).float()


def parts(q, k, v, seen, size):
    cut = [*zip(k.split(size, -2), v.split(size, -2), seen.split(size, -1),
                strict=True)]  # fmt: skip
    return [attend_block(q, *one) for one in cut]


def assert_equal(got, expected):
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_one_block_is_attention():
    args = inputs()
    assert_equal(attend_block(*args), whole(*args))


@pytest.mark.parametrize("size", [1, 3, 5, 11, 12, 50])
def test_blocks_of_any_size_make_the_whole(size):
    args = inputs()
    assert_equal(reduce(merge, parts(*args, size)), whole(*args))


def test_the_order_makes_no_difference():
    args = inputs()
    for order in permutations(parts(*args, 3)):
        assert_equal(reduce(merge, order), whole(*args))


def test_a_block_that_nobody_sees():
    q, k, v, seen = inputs()
    nothing = attend_block(q, k, v, torch.zeros_like(seen))
    assert torch.equal(nothing.out, torch.zeros_like(q))
    assert (nothing.lse == -torch.inf).all()
    both = merge(nothing, nothing)
    assert torch.equal(both.out, nothing.out)
    assert (both.lse == -torch.inf).all()
    full = attend_block(q, k, v, seen)
    assert_equal(merge(nothing, full), full)
    assert_equal(merge(full, nothing), full)


def test_large_scores_do_not_overflow():
    q, k, v, seen = inputs()
    args = q * 100, k * 100, v, seen
    got = reduce(merge, parts(*args, 4))
    assert got.out.isfinite().all()
    torch.testing.assert_close(got.out, whole(*args)[0], rtol=1e-3, atol=1e-3)


def test_it_computes_in_float32():
    q, k, v, seen = (x.bfloat16() if x.is_floating_point() else x
                     for x in inputs())  # fmt: skip
    got = attend_block(q, k, v, seen)
    assert isinstance(got, Partial)
    assert got.out.dtype == got.lse.dtype == torch.float32
    assert_equal(got, whole(q, k, v, seen))


@pytest.mark.parity
@pytest.mark.parametrize("block", [7, 64])
def test_a_model_gives_the_same_tokens(block):
    chosen = prompts(FOLDER)[2:8]
    paged = Paged(FOLDER, 4, pages=512)
    paged.ctx.attn_backend = BlockwiseBackend(paged.config, block)
    reqs = [make_req(p, row, 12) for row, p in enumerate(chosen)]
    paged.step(reqs, "prefill")
    while reqs[0].can_decode:
        paged.step(reqs)
    for req, prompt in zip(reqs, chosen, strict=True):
        assert_parity(answer(req), reference(FOLDER, prompt, 12))
