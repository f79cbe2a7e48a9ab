"""Operators by a GPU library: used where they may be, equal to those in torch."""

import pytest
import torch

from minisgl.engine.gpu_sample import _draw, sample_on_gpu
from minisgl.engine.sample import sample_impl
from minisgl.layers import RMSNorm, RMSNormFused, silu_and_mul
from minisgl.layers.gpu_ops import flashinfer_for, flashinfer_on
from minisgl.layers.rotary import RotaryEmbedding
from tests.driver import Driver
from tests.fakes import flashinfer
from tests.fakes.install import stand_ins
from tests.parity import model_under_test, prompts

FOLDER = model_under_test("qwen3-tiny")
CPU = torch.device("cpu")
VOCAB = 1000


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def calls(monkeypatch):
    """Inside, the library is there; the list names its functions as they are used."""
    found = []

    def spied(name):
        function = getattr(flashinfer, name)

        def spy(*args, **kwargs):
            found.append(name)
            return function(*args, **kwargs)

        return spy

    for name in (
        "rmsnorm",
        "fused_add_rmsnorm",
        "silu_and_mul",
        "apply_rope_with_cos_sin_cache_inplace",
    ):
        monkeypatch.setattr(flashinfer, name, spied(name))
    with stand_ins("flashinfer"):
        yield found


def both_ways(run):
    """What `run` returns without the library, then with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minisgl.utils.libraries._DEVICES", ("cuda",))
        plain = run()
    return plain, run()


def test_where_the_library_is_used():
    assert flashinfer_on(CPU) is None
    assert flashinfer_for(torch.zeros(2, 64)) is None
    with stand_ins("flash_attn"):
        assert flashinfer_on(CPU) is None
    with stand_ins("flashinfer"):
        assert flashinfer_on(CPU) is flashinfer
        assert flashinfer_for(torch.zeros(2, 64)) is flashinfer
        assert flashinfer_for(torch.zeros(2, 64).bfloat16()) is flashinfer
        assert flashinfer_for(torch.zeros(2, 64).double()) is None
        assert flashinfer_for(torch.zeros(2, 60).bfloat16()) is None
        assert flashinfer_for(torch.zeros(64, 2).T) is None


def test_rmsnorm_of_rows_and_of_heads(calls):
    norm = RMSNorm(64, 1e-5)
    norm.weight = randn(64, seed=1)
    wide = randn(5, 6 * 64)
    for x in (wide[:, :64], wide[:, 64:320].view(5, 4, 64)):
        plain, found = both_ways(lambda x=x: norm.forward(x))
        torch.testing.assert_close(found, plain)
    assert calls == ["rmsnorm"] * 2
    four = randn(2, 3, 4, 64)
    plain, found = both_ways(lambda: norm.forward(four))
    assert torch.equal(found, plain) and len(calls) == 2
    x = randn(5, 64)
    expected = norm.forward(x)
    norm.forward_inplace(x)
    assert torch.equal(x, expected)


def test_the_residual_stream_is_added_in_place(calls):
    norm = RMSNormFused(64, 1e-5)
    norm.weight = randn(64, seed=1)
    plain, found = both_ways(
        lambda: norm.forward(randn(5, 64), randn(5, 64, seed=2))
    )
    for mine, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert calls[0] == "fused_add_rmsnorm"
    calls.clear()
    plain, found = both_ways(lambda: norm.forward(randn(5, 64)))
    for mine, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert calls == ["rmsnorm"]


def test_silu_and_mul(calls):
    x, out = randn(5, 128), torch.empty(5, 64)
    plain, found = both_ways(lambda: silu_and_mul(x))
    torch.testing.assert_close(found, plain)
    assert silu_and_mul(x, out) is out
    torch.testing.assert_close(out, plain)
    assert calls == ["silu_and_mul"] * 2
    # Rows with a gap between them, which the kernel would not see.
    gaps = randn(5, 256)[:, :128]
    plain, found = both_ways(lambda: silu_and_mul(gaps))
    assert torch.equal(found, plain) and len(calls) == 2


@pytest.mark.parametrize(("size", "rotary"), [(64, 64), (128, 32), (48, 48)])
def test_rope_of_parts_of_one_tensor(calls, size, rotary):
    rope = RotaryEmbedding(size, rotary, 64, 10000.0)
    positions = torch.tensor([0, 1, 63, 7])

    def run():
        qkv = randn(4, 8 * size)
        q, k, v = qkv.split([4 * size, 2 * size, 2 * size], -1)
        return (*rope.forward(positions, q, k), v)

    plain, found = both_ways(run)
    for mine, theirs in zip(found, plain, strict=True):
        torch.testing.assert_close(mine, theirs)
    used = ["apply_rope_with_cos_sin_cache_inplace"] if size != 48 else []
    assert calls == used


# Drawing.


def allowed(row, top_k, top_p, min_p):
    """Float64 probabilities of one row, limits applied, in the order of ids."""
    probs = row.double().softmax(-1)
    order = probs.argsort(descending=True)
    kept = torch.zeros(VOCAB, dtype=torch.bool)
    kept[order[:top_k]] = True
    cut = torch.where(kept, probs, 0.0)
    cut = cut / cut.sum()
    before = cut[order].cumsum(0) - cut[order]
    kept[order[before >= top_p]] = False
    kept &= probs >= min_p * probs.max()
    result = torch.where(kept, probs, 0.0)
    return result / result.sum()


LIMITS = [
    (VOCAB, 1.0, 0.0),
    (7, 1.0, 0.0),
    (1, 1.0, 0.0),
    (VOCAB, 0.6, 0.0),
    (VOCAB, 1e-9, 0.0),
    (30, 0.8, 0.0),
    (VOCAB, 1.0, 0.05),
    (50, 0.9, 0.02),
]


@pytest.mark.parametrize("limits", LIMITS)
def test_c12_a_number_picks_its_token_among_those_allowed(limits):
    row, n = 2 * randn(VOCAB), 500
    top_k, top_p, min_p = limits
    numbers = (torch.arange(n) + 0.5) / n
    expected = allowed(row / 0.7, *limits)
    drawn = sample_on_gpu(
        flashinfer,
        row.repeat(n, 1),
        torch.full((n,), 0.7),
        torch.full((n,), top_k),
        torch.full((n,), top_p),
        torch.full((n,), min_p),
        numbers,
    )
    edges = expected.cumsum(0)
    wanted = torch.searchsorted(edges, numbers.double() * edges[-1], right=True)
    assert (expected[drawn] > 0).all()
    # The sums are made in another order and precision: a neighbour now and then.
    assert (drawn != wanted).sum() <= 2
    assert set(drawn.tolist()) == set(wanted.tolist())


@pytest.mark.parametrize("size", [5, 127, 128, 129, 1000])
def test_no_impossible_token_is_drawn_at_the_edges(size):
    logits = torch.full((4, size), -torch.inf)
    logits[0, 0] = logits[1, size - 1] = 0.0
    logits[2:, [0, size // 2]] = 0.0
    numbers = torch.tensor([1 - 2**-24, 0.0, 0.0, 1 - 2**-24])
    ones = torch.ones(4)
    drawn = sample_on_gpu(flashinfer, logits, ones, None, None, None, numbers)
    assert drawn.tolist() == [0, size - 1, 0, size // 2]
    coldest = torch.full((4,), 1e-6)
    drawn = sample_on_gpu(
        flashinfer, logits, coldest, None, None, None, numbers
    )
    assert drawn.tolist() == [0, size - 1, 0, size // 2]


def test_a_number_between_two_ways_to_add_up_picks_no_weight_of_zero():
    """Summed in another order, a block can be a little more than its parts."""
    weights = torch.zeros(1, 256)
    weights[0, 0] = weights[0, 200] = 1.0
    weights[0, 1:64] = 2**-54
    drawn = _draw(weights, torch.tensor([0.5]))
    assert float(weights[0, drawn]) > 0


def test_min_p_of_one_leaves_the_best_and_its_equals():
    logits = torch.zeros(4, VOCAB)
    logits[:, [3, 200]] = 2.0
    ones, numbers = torch.ones(4), torch.tensor([0.0, 0.4, 0.6, 0.99])
    drawn = sample_on_gpu(flashinfer, logits, ones, None, None, ones, numbers)
    assert drawn.tolist() == [3, 3, 200, 200]


def test_c14_a_row_that_is_not_numbers_leaves_the_others_alone():
    logits = 2 * randn(3, VOCAB)
    numbers = torch.tensor([0.3, 0.5, 0.7])
    limits = (torch.full((3,), 40), torch.full((3,), 0.9), torch.zeros(3))
    for bad in (torch.nan, torch.inf, -torch.inf):
        sick = logits.clone()
        sick[1] = bad
        drawn = [
            sample_on_gpu(flashinfer, x, torch.ones(3), *limits, numbers)
            for x in (logits, sick)
        ]
        assert drawn[0][[0, 2]].tolist() == drawn[1][[0, 2]].tolist()
        assert 0 <= int(drawn[1][1]) < VOCAB


def test_the_sampler_of_the_engine_draws_by_the_library():
    logits, ones = randn(2, VOCAB), torch.ones(2)
    numbers = torch.tensor([0.1, 0.9])
    with stand_ins("flashinfer"):
        drawn = sample_impl(logits, ones, None, None, None, numbers)
    expected = sample_on_gpu(
        flashinfer, logits, ones, None, None, None, numbers
    )
    assert torch.equal(drawn, expected)


def answers(asked, **settings):
    driver = Driver(FOLDER, **settings)
    for uid, (ids, params) in asked.items():
        driver.submit(uid, ids, max_tokens=10, **params)
    driver.run()
    return driver.answers


@pytest.mark.parametrize(
    "params", [{}, {"top_p": 0.8}, {"top_k": 40}, {"min_p": 0.01}]
)
def test_c13_a_seed_holds_beside_any_neighbours(params):
    ids = prompts(FOLDER)
    mine = {"temperature": 1.0, "seed": 42, **params}
    others = {
        uid: (ids[uid], {"temperature": 1.0, "top_p": 0.9, "seed": uid})
        for uid in range(1, 5)
    }
    with stand_ins():
        alone = answers({9: (ids[5], mine)})[9]
        beside = answers({**others, 9: (ids[5], mine)})[9]
        other = answers({9: (ids[5], {**mine, "seed": 43})})[9]
    assert alone == beside
    assert alone != other


@pytest.mark.parity
def test_greedy_answers_with_every_operator_by_the_library(calls):
    driver = Driver(FOLDER, attention_backend="fi", page_size=4)
    for uid, ids in enumerate(prompts(FOLDER)[:6]):
        driver.submit(uid, ids, max_tokens=16)
    driver.run()
    driver.assert_parity(length=16)
    assert set(calls) == {
        "rmsnorm",
        "fused_add_rmsnorm",
        "silu_and_mul",
        "apply_rope_with_cos_sin_cache_inplace",
    }
