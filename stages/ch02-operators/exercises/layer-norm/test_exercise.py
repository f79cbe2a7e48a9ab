"""LayerNorm: its numbers, where it rounds, and which weights it has."""

import pytest
import torch
import torch.nn.functional as F

from minisgl.layers.layernorm import LayerNorm
from minisgl.layers.norm import RMSNorm

SIZE, EPS = 48, 1e-5


def make(dtype=torch.float32, has_bias=True):
    """The operator with random weights."""
    rng = torch.Generator().manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            norm = LayerNorm(SIZE, EPS, has_bias)
    finally:
        torch.set_default_dtype(torch.float32)
    state = {
        name: torch.randn(SIZE, generator=rng).to(dtype)
        for name in norm.state_dict()
    }
    norm.load_state_dict(dict(state))
    return norm, state.get("weight"), state.get("bias")


def expected(x, weight, bias):
    """All in float32, rounded at the end."""
    bias = None if bias is None else bias.float()
    out = F.layer_norm(x.float(), (SIZE,), weight.float(), bias, EPS)
    return out.to(x.dtype)


@pytest.mark.parametrize("has_bias", [True, False])
def test_the_numbers(has_bias):
    norm, weight, bias = make(has_bias=has_bias)
    x = 3 * torch.randn(2, 5, SIZE) + 1
    out = norm.forward(x)
    assert out.shape == x.shape
    torch.testing.assert_close(out, expected(x, weight, bias))


def test_a_large_mean_does_not_drown_the_variance():
    norm, weight, bias = make()
    torch.manual_seed(0)
    x = torch.randn(4, SIZE) + 500
    torch.testing.assert_close(
        norm.forward(x), expected(x, weight, bias), rtol=1e-3, atol=1e-3
    )


def test_it_rounds_once():
    norm, weight, bias = make(torch.bfloat16)
    x = torch.randn(64, SIZE).bfloat16()
    out = norm.forward(x)
    assert out.dtype == torch.bfloat16
    differ = (out != expected(x, weight, bias)).float().mean()
    assert differ < 0.01


def test_the_weights_have_the_names_of_checkpoints():
    with torch.device("meta"):
        both, single = LayerNorm(SIZE, EPS), LayerNorm(SIZE, EPS, False)
    assert sorted(both.state_dict()) == ["bias", "weight"]
    assert sorted(single.state_dict()) == ["weight"]
    assert both.state_dict()["bias"].shape == (SIZE,)


def test_a_bias_that_nobody_wants_is_reported():
    with torch.device("meta"):
        norm = LayerNorm(SIZE, EPS, has_bias=False)
    state = {"weight": torch.ones(SIZE), "bias": torch.zeros(SIZE)}
    with pytest.raises(KeyError, match="bias"):
        norm.load_state_dict(state)


def test_unlike_rms_norm_it_does_not_see_a_shift():
    norm, *_ = make()
    rms = RMSNorm(SIZE, EPS)
    rms.weight = torch.ones(SIZE)
    x = torch.randn(3, SIZE)
    torch.testing.assert_close(norm.forward(x + 2), norm.forward(x))
    assert (rms.forward(x + 2) - rms.forward(x)).abs().max() > 0.1
