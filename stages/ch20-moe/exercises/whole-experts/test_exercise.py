"""Ranks in turn in one process: their parts add up to what the reference computes."""

import pytest
import torch

from minisgl.moe import create_moe_backend
from minisgl.moe.whole_experts import WholeExperts, experts_of, imbalance

HIDDEN, MIDDLE = 16, 12


def draw(tokens, experts, dtype=torch.float32):
    generator = torch.Generator().manual_seed(tokens * 100 + experts)

    def random(*shape):
        made = torch.randn(shape, generator=generator)
        return (made * shape[-1] ** -0.5).to(dtype)

    w1 = random(experts, 2 * MIDDLE, HIDDEN)
    w2 = random(experts, HIDDEN, MIDDLE)
    x, gates = 4 * random(tokens, HIDDEN), 4 * random(tokens, experts)
    return x, w1, w2, gates


def parts(size, x, w1, w2, gates, *args):
    found = []
    for rank in range(size):
        first, last = experts_of(rank, size, len(w1))
        backend = WholeExperts(first)
        mine = w1[first:last], w2[first:last]
        found.append(backend.forward(x, *mine, gates, *args))
    return found


@pytest.mark.parametrize(
    "experts, size, wanted",
    [
        (8, 2, [(0, 4), (4, 8)]),
        (10, 4, [(0, 3), (3, 6), (6, 8), (8, 10)]),
        (3, 3, [(0, 1), (1, 2), (2, 3)]),
        (2, 3, [(0, 1), (1, 2), (2, 2)]),
    ],
)
def test_experts_are_dealt_out_in_order(experts, size, wanted):
    assert [experts_of(r, size, experts) for r in range(size)] == wanted


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("on_input", [True, False])
@pytest.mark.parametrize("tokens, topk", [(1, 2), (9, 3), (9, 8)])
def test_the_parts_add_up(size, renormalize, on_input, tokens, topk):
    x, w1, w2, gates = draw(tokens, 8)
    args = (topk, renormalize, "gelu", on_input)
    wanted = create_moe_backend("torch").forward(x, w1, w2, gates, *args)
    found = parts(size, x, w1, w2, gates, *args)
    torch.testing.assert_close(sum(found), wanted, rtol=1e-5, atol=1e-5)


def test_a_rank_nobody_wants_gives_zeros_and_reads_nothing():
    x, w1, w2, gates = draw(5, 8)
    gates[:, :4] = 50
    w1[4:] = w2[4:] = float("nan")
    first, second = parts(2, x, w1, w2, gates, 2, True)
    assert torch.equal(second, torch.zeros_like(x))
    assert torch.isfinite(first).all() and first.abs().sum() > 0


def test_sums_are_rounded_once():
    x, w1, w2, gates = draw(6, 8, torch.bfloat16)
    (found,) = parts(1, x, w1, w2, gates, 8, True)
    wanted = create_moe_backend("torch").forward(x, w1, w2, gates, 8, True)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.002)


def test_fair_and_unfair():
    every = torch.arange(8).view(4, 2)
    assert imbalance(every, 4, 8) == 1.0
    assert imbalance(torch.zeros(5, 1, dtype=torch.int32), 4, 8) == 4.0
    # Experts 0 to 3 are the first rank's: 3 pairs of 4, where 2 are fair.
    assert imbalance(torch.tensor([[0, 3], [1, 7]]), 2, 8) == 1.5
    # Of 10 experts the ranks have 3, 3, 2 and 2.
    assert imbalance(torch.arange(10).view(5, 2), 4, 10) == 1.2
