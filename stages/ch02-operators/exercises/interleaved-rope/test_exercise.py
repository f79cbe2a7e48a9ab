"""Interleaved RoPE: complex numbers say what it is, and halves can stand for it."""

import pytest
import torch

from minisgl.layers.interleaved import InterleavedRotary, to_halves
from minisgl.layers.rotary import RotaryEmbedding

HEAD, BASE, LENGTH = 16, 10000.0, 64
RNG = torch.Generator().manual_seed(0)


def rotary(kind, rotary_dim=HEAD):
    return kind(HEAD, rotary_dim, LENGTH, BASE)


def random(*shape):
    return torch.randn(*shape, generator=RNG)


def by_complex(x, positions, rotary_dim):
    """The definition: neighbours are a complex number, multiplied by e^(i angle)."""
    heads = x.double().view(len(x), -1, HEAD)
    pairs = heads[..., :rotary_dim].unflatten(-1, (-1, 2)).contiguous()
    speeds = BASE ** (-torch.arange(0, rotary_dim, 2).double() / rotary_dim)
    angles = positions.double()[:, None, None] * speeds
    turned = torch.view_as_complex(pairs) * torch.exp(1j * angles)
    turned = torch.view_as_real(turned).flatten(-2)
    return torch.cat([turned, heads[..., rotary_dim:]], -1).view_as(x).float()


@pytest.mark.parametrize("rotary_dim", [HEAD, 8])
def test_neighbours_are_complex_numbers(rotary_dim):
    q, k = random(5, 3 * HEAD), random(5, HEAD)
    positions = torch.tensor([0, 1, 2, 17, 63])
    got = rotary(InterleavedRotary, rotary_dim).forward(positions, q, k)
    for x, y in zip((q, k), got, strict=True):
        assert y.shape == x.shape
        torch.testing.assert_close(
            y, by_complex(x, positions, rotary_dim), rtol=1e-4, atol=1e-4
        )


def test_it_computes_in_float32():
    q = random(8, HEAD).bfloat16()
    positions = torch.arange(8) + 40
    turned, _ = rotary(InterleavedRotary).forward(positions, q, q)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned, by_complex(q, positions, HEAD).bfloat16())


def test_it_is_not_the_layout_of_halves():
    q = random(2, HEAD)
    positions = torch.tensor([1, 5])
    one, _ = rotary(InterleavedRotary).forward(positions, q, q)
    other, _ = rotary(RotaryEmbedding).forward(positions, q, q)
    assert (one - other).abs().max() > 0.1


@pytest.mark.parametrize("rotary_dim", [HEAD, 8])
@pytest.mark.parametrize("heads", [1, 3])
def test_reordered_weights_give_the_same_scores_with_halves(heads, rotary_dim):
    hidden, positions = random(6, 20), torch.tensor([0, 3, 4, 9, 30, 60])
    weights = [random(heads * HEAD, 20), random(heads * HEAD, 20)]
    biases = [random(heads * HEAD), random(heads * HEAD)]

    def scores(kind, change):
        pairs = zip(weights, biases, strict=True)
        qk = [hidden @ change(w).T + change(b) for w, b in pairs]
        q, k = rotary(kind, rotary_dim).forward(positions, *qk)
        q, k = (x.view(6, heads, HEAD) for x in (q, k))
        return torch.einsum("thd,shd->hts", q, k)

    kept = scores(InterleavedRotary, lambda w: w)
    moved = scores(RotaryEmbedding, lambda w: to_halves(w, HEAD, rotary_dim))
    torch.testing.assert_close(moved, kept, rtol=1e-4, atol=1e-3)


def test_reordering_moves_whole_rows():
    weight = torch.arange(2 * HEAD).float().unsqueeze(1).expand(-1, 3)
    moved = to_halves(weight, HEAD, 8)
    assert moved[:, 0].tolist() == [
        *[0, 2, 4, 6, 1, 3, 5, 7, *range(8, 16)],
        *[16, 18, 20, 22, 17, 19, 21, 23, *range(24, 32)],
    ]
    assert torch.equal(moved[:, 0], moved[:, 2])
