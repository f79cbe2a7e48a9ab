"""The kernel on the simulated GPU, against two lines of torch."""

import pytest
import torch

from minisgl.kernel.warp_norm import load, norm_rows

GUARD = 8  # rows around those of the kernel


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return load(tmp_path_factory.mktemp("kernel"))


def expected(x, weight):
    x = x.double()
    scale = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return (x * scale * weight).float()


def draw(rows, width):
    generator = torch.Generator().manual_seed(rows * 1000 + width)
    x = torch.randn(rows + 2 * GUARD, width, generator=generator)
    return x, torch.randn(width, generator=generator)


@pytest.mark.parametrize("width", [1, 5, 31, 32, 33, 64, 100, 1024])
@pytest.mark.parametrize("rows", [1, 4, 7])
def test_rows_are_normed_and_nothing_else(library, rows, width):
    x, weight = draw(rows, width)
    before = x.clone()
    norm_rows(library, x[GUARD : GUARD + rows], weight)
    inside = x[GUARD : GUARD + rows]
    wanted = expected(before[GUARD : GUARD + rows], weight)
    torch.testing.assert_close(inside, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(x[:GUARD], before[:GUARD]), "before the first row"
    after = slice(GUARD + rows, None)
    assert torch.equal(x[after], before[after]), "behind the last row"


def test_rows_do_not_mix(library):
    x, weight = draw(3, 40)
    x[1] *= 1000
    x[2] = 0
    wanted = expected(x, weight)
    norm_rows(library, x, weight)
    torch.testing.assert_close(x, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(x[2], torch.zeros(40))


def test_all_lanes_have_the_same_sum(library):
    # One large number, which one lane reads; all must be scaled by it.
    x, weight = torch.ones(1, 64), torch.ones(64)
    x[0, 17] = 100
    wanted = expected(x, weight)
    norm_rows(library, x, weight)
    torch.testing.assert_close(x, wanted, rtol=1e-5, atol=1e-6)
    others = torch.cat([x[0, :17], x[0, 18:]])
    assert len(others.unique()) == 1


def test_no_rows_are_no_launch(library):
    norm_rows(library, torch.empty(0, 8), torch.ones(8))
