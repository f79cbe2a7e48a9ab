"""Scales that are looked for: better for each group, and never worse."""

import pytest
import torch

from minisgl.kernel.quant_linear import dequantize
from minisgl.quant import QuantConfig
from minisgl.quant.integers import Int4Method
from minisgl.quant.searched import SearchedInt4

CONFIG = QuantConfig("int4", 32)


def errors_of(method, weight):
    """The squared error of each group, [out, groups]."""
    meant = dequantize(*method.quantize(weight), 32)
    off = (meant - weight).view(len(weight), -1, 32)
    return off.square().sum(2)


def normal(rows=64, columns=256):
    make = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=make)


def test_no_group_is_worse_and_most_are_better():
    weight = normal()
    plain = errors_of(Int4Method(CONFIG), weight)
    found = errors_of(SearchedInt4(CONFIG), weight)
    assert (found <= plain * 1.0001).all()
    assert (found < plain * 0.999).float().mean() > 0.5
    assert found.sum() < 0.95 * plain.sum()


def test_each_group_has_the_best_of_all_shares():
    weight = normal(8, 64)
    groups = weight.view(8, 2, 32)
    full = Int4Method(CONFIG)._scale(groups)
    tried = []
    for share in SearchedInt4.shares:
        scale = share * full
        meant = (groups / scale).round().clamp(-8, 7) * scale
        tried.append((meant - groups).square().sum(2))
    found = errors_of(SearchedInt4(CONFIG), weight)
    torch.testing.assert_close(found, torch.stack(tried).amin(0))


def test_errors_are_sums_of_squares():
    groups = torch.tensor([[[1.0, -8.4, 2.6, 9.0]]])
    found = SearchedInt4(CONFIG)._errors(groups, torch.ones(1, 1, 1))
    expected = 0.4**2 + 0.4**2 + 2.0**2
    torch.testing.assert_close(found, torch.full((1, 1, 1), expected))
    nothing = torch.zeros(1, 1, 4)
    found = SearchedInt4(CONFIG)._errors(nothing, torch.zeros(1, 1, 1))
    assert (found == 0).all(), "a group of zeros is never off"


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_stay_as_they_are(sign):
    make = torch.Generator().manual_seed(1)
    whole = torch.randint(-8, 8, (8, 64), generator=make).float()
    whole[:, ::32] = -8
    weight = sign * 0.05 * whole
    assert errors_of(SearchedInt4(CONFIG), weight).max() < 1e-10


def test_zeros_stay_zeros():
    weight = normal(4, 64)
    weight[1] = 0
    weight[2, :32] = 0
    method = SearchedInt4(CONFIG)
    errors = errors_of(method, weight)
    assert errors.isfinite().all()
    assert errors[1].max() == 0 and errors[2, 0] == 0
