"""From logits to tokens: limits, seeds, ties, rows that are not numbers."""

import math

import pytest
import torch

from minisgl.core import Batch, SamplingParams
from minisgl.engine import FAILED_TOKEN, Sampler
from minisgl.engine.sample import sample_impl
from tests.handmade import make_req

CPU = torch.device("cpu")
PROBS = [0.1, 0.4, 0.05, 0.3, 0.15]
"""Five tokens; from the likeliest on they are 1, 3, 4, 0, 2."""


def sampler_of(vocab=5, seed=0, processors=()):
    return Sampler(CPU, vocab, seed, list(processors))


def batch_of(params, length=3):
    reqs = [make_req([0] * length, row, 8, p) for row, p in enumerate(params)]
    return Batch(reqs, "prefill")


def draw(params, logits, sampler=None):
    """The token of each row; one row of logits stands for all of them."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    if logits.dim() == 1:
        logits = logits.expand(len(params), -1)
    sampler = sampler or sampler_of(logits.shape[1])
    args = sampler.prepare(batch_of(params))
    return sampler.sample(logits, args).tolist()


def spread(params, probs=PROBS, n=1000):
    """How many of `n` evenly spaced random numbers give each token."""
    logits = torch.tensor([probs]).log().expand(n, -1)
    args = sampler_of(len(probs)).prepare(batch_of([params] * n))
    args.uniforms = (torch.arange(n) + 0.5) / n
    tokens = sampler_of(len(probs)).sample(logits, args)
    return tokens.bincount(minlength=len(probs)).tolist()


def drawn(**params):
    return SamplingParams(**{"temperature": 1.0} | params)


def near(counts, probs, n=1000):
    return all(abs(c - p * n) <= 1 for c, p in zip(counts, probs, strict=True))


def test_draws_follow_the_distribution():
    assert near(spread(drawn()), PROBS)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_divides_the_logits(temperature):
    powers = [p ** (1 / temperature) for p in PROBS]
    expected = [p / sum(powers) for p in powers]
    assert near(spread(drawn(temperature=temperature)), expected)


@pytest.mark.parametrize("top_k", [-1, 0, 5, 6, 9_999_999])
def test_c12_top_k_of_the_vocabulary_or_none_is_off(top_k):
    assert spread(drawn(top_k=top_k)) == spread(drawn())


def test_top_k_keeps_that_many_and_of_equals_the_lowest_ids():
    kept = [0, 400 / 700, 0, 300 / 700, 0]
    assert near(spread(drawn(top_k=2)), kept)
    assert spread(drawn(top_k=4))[2] == 0
    assert spread(drawn(top_k=2), probs=[0.25] * 4) == [500, 500, 0, 0]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.71}, {1, 3, 4}),
        ({"top_p": 0.96}, {0, 1, 2, 3, 4}),
        ({"min_p": 0.76}, {1}),
        ({"min_p": 0.74}, {1, 3}),
        ({"min_p": 0.2}, {0, 1, 3, 4}),
        ({"min_p": 0.0}, {0, 1, 2, 3, 4}),
        ({"top_k": 3, "top_p": 0.71, "min_p": 0.5}, {1, 3}),
        # 0.4 of the 0.7 that two tokens have is more than half of them.
        ({"top_k": 2, "top_p": 0.5}, {1}),
        ({"top_k": 2, "top_p": 0.6}, {1, 3}),
    ],
)
def test_what_the_limits_keep(limits, kept):
    counts = spread(drawn(**limits))
    assert {token for token, count in enumerate(counts) if count} == kept


def test_a_set_that_reaches_top_p_exactly_is_large_enough():
    assert spread(drawn(top_p=0.5), probs=[0.25, 0.5, 0.25]) == [0, 1000, 0]


def test_top_p_of_one_keeps_what_is_too_small_to_be_counted():
    args = {"temperatures": torch.ones(1), "top_k": None}
    logits = torch.tensor([[0.0, -20.0, -20.0]])
    last = torch.tensor([1.0])
    one = sample_impl(logits, **args, top_p=torch.ones(1), uniforms=last)
    off = sample_impl(logits, **args, top_p=None, uniforms=last)
    assert one.tolist() == off.tolist() == [2]


def test_c12_limits_at_their_edges_are_greedy():
    assert spread(drawn(top_p=1.0)) == spread(drawn())
    for tight in (1e-9, 1e-60):
        assert spread(drawn(top_p=tight))[1] == 1000
    assert spread(drawn(min_p=1.0))[1] == 1000
    assert drawn(top_k=1).is_greedy and not drawn(top_k=2).is_greedy
    assert spread(drawn(top_k=1))[1] == 1000


def test_c12_two_thousand_draws_stay_in_the_kept_set():
    params = [drawn(top_k=2, top_p=0.6)] * 2000
    tokens = draw(params, torch.tensor(PROBS).log())
    assert set(tokens) == {1, 3}
    assert 1050 < tokens.count(1) < 1240  # 4/7 of them: 1143, deviation 22


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", -0.1),
        ("temperature", -1),
        ("temperature", math.nan),
        ("top_k", 0.5),
        ("top_k", "5"),
        ("min_p", 1.01),
    ],
)
def test_c12_a_bad_value_is_refused_and_named_and_the_next_is_served(
    name, value
):
    with pytest.raises(ValueError, match=f"^{name} must be .*, got "):
        drawn(**{name: value})
    assert draw([drawn()], torch.tensor(PROBS).log())[0] in range(5)


def test_temperature_zero_is_greedy_with_limits_set():
    logits = [0.0, 0.1, 0.2, 0.1]
    limited = SamplingParams(temperature=0.0, top_k=3, top_p=0.9, min_p=0.01)
    assert limited.is_greedy
    assert draw([limited] * 50 + [drawn()], logits)[:50] == [2] * 50


def test_greedy_takes_the_lowest_of_equal_ids_whatever_others_do():
    logits = torch.zeros(6, 300)
    logits[:, [70, 30, 299]] = 1.0
    greedy, hot = SamplingParams(), drawn(temperature=5.0)
    alone = draw([greedy] * 6, logits)
    mixed = draw([greedy, hot, greedy, hot, hot, greedy], logits)
    assert alone == [30] * 6
    assert [mixed[0], mixed[2], mixed[5]] == [30] * 3
    # A difference in the last bit of float32 decides too.
    logits[:, 70] = torch.nextafter(logits[:, 70], torch.tensor(2.0))
    assert draw([greedy, hot] * 3, logits)[::2] == [70] * 3


def test_all_greedy_rows_need_no_tensors():
    args = sampler_of().prepare(batch_of([SamplingParams(), drawn(top_k=1)]))
    assert vars(args) == dict.fromkeys(vars(args)) | {"edits": []}


def test_rows_keep_their_own_parameters():
    mixed = [
        drawn(seed=1, temperature=0.7),
        drawn(seed=2, top_k=3),
        SamplingParams(),
        drawn(seed=3, top_p=0.8),
        drawn(seed=4, min_p=0.3, temperature=1.5),
    ]
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 64, generator=rng)
    alone = [draw([p], row)[0] for p, row in zip(mixed, logits, strict=True)]
    assert draw(mixed, logits) == alone
    order = [3, 0, 4, 2, 1]
    shuffled = draw([mixed[i] for i in order], logits[order])
    assert shuffled == [alone[i] for i in order]


def test_uniforms_are_below_one_and_fine():
    args = sampler_of().prepare(batch_of([drawn()] * 3000))
    numbers = args.uniforms
    assert numbers.dtype == torch.float32
    assert 0 <= numbers.min() < 0.01 and 0.99 < numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.03
    fine = numbers.double() * 2**24
    assert torch.equal(fine, fine.round()) and (fine % 2 == 1).any()


def test_c13_a_seed_gives_a_number_for_every_length_of_its_request():
    def numbers(seed, length, before=()):
        params = [*before, drawn(seed=seed)]
        return sampler_of().prepare(batch_of(params, length)).uniforms[-1]

    assert numbers(42, 3) == numbers(42, 3, before=[drawn(), drawn(seed=7)])
    different = {float(numbers(s, n)) for s in (0, 42, -1) for n in range(1, 9)}
    assert len(different) == 24


def test_c13_without_seeds_the_sampler_decides_about_repetition():
    params, flat = [drawn()] * 30, torch.zeros(1000)
    first, second = (draw(params, flat, sampler_of(1000, 5)) for _ in "12")
    assert first == second
    first, second = (draw(params, flat, sampler_of(1000, None)) for _ in "12")
    assert first != second


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("params", [SamplingParams(), drawn(seed=0)])
def test_c14_a_row_that_is_not_numbers_fails_alone(params, bad):
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 64, generator=rng)
    good = draw([params] * 3, logits)
    logits[1, 40] = bad
    assert draw([params] * 3, logits) == [good[0], FAILED_TOKEN, good[2]]
    assert FAILED_TOKEN not in range(64)


def test_c14_a_row_with_nothing_allowed_fails_and_one_with_little_does_not():
    logits = torch.full((4, 8), -math.inf)
    logits[0, 5] = logits[1, 6] = -3.0
    params = [SamplingParams(), drawn(), drawn(), SamplingParams()]
    assert draw(params, logits) == [5, 6, FAILED_TOKEN, FAILED_TOKEN]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24, 1.0])
def test_forbidden_tokens_are_never_drawn(uniform):
    logits = torch.tensor([[-math.inf, 1.0, -math.inf, 1.0, 0.0]])
    token = sample_impl(
        logits, torch.ones(1), None, None, uniforms=torch.tensor([uniform])
    )
    assert token.tolist() == [1 if uniform == 0.0 else 4]


def test_a_number_that_rounds_up_to_one_stays_in_the_kept_set():
    args = (torch.ones(1), torch.tensor([2]), None, None, torch.ones(1))
    assert sample_impl(torch.tensor([PROBS]).log(), *args).tolist() == [3]


def test_without_numbers_given_draws_differ():
    n = 400
    logits = torch.tensor([PROBS]).log().expand(n, -1)
    tokens = sample_impl(logits, torch.ones(n), None, None)
    assert set(tokens.tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-320])
@pytest.mark.parametrize("largest", [1.0, 3e38])
def test_the_coldest_temperatures_find_the_likeliest(temperature, largest):
    logits = torch.tensor([0.1, 1.0, -1.0, 0.9]) * largest
    cold = drawn(temperature=temperature)
    assert not cold.is_greedy
    assert draw([cold] * 3, logits) == [1] * 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits(dtype):
    logits = torch.tensor([PROBS]).log().to(dtype).expand(6, -1)
    sampler = sampler_of()
    args = sampler.prepare(batch_of([SamplingParams()] * 3 + [drawn()] * 3))
    tokens = sampler.sample(logits, args)
    assert tokens.dtype == torch.int32
    assert tokens[:3].tolist() == [1, 1, 1]
    assert set(tokens[3:].tolist()) <= set(range(5))


def test_processors_edit_the_logits_in_order_before_anything_else():
    seen = []

    def forbid_best(batch):
        seen.append(batch)
        row = [req.uid for req in batch.reqs].index(1)

        def edit(logits):
            logits = logits.clone()
            logits[row, logits[row].argmax()] = -math.inf
            return logits

        return edit

    sampler = sampler_of(4, 0, [lambda _: None, forbid_best, forbid_best])
    for params in (SamplingParams(), drawn(temperature=0.01)):
        batch = batch_of([params] * 3)
        args = sampler.prepare(batch)
        logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]] * 3)
        assert sampler.sample(logits, args).tolist() == [1, 3, 1]
        assert seen[-2:] == [batch, batch] and len(args.edits) == 2
        assert logits[1].tolist() == [0.0, 3.0, 2.0, 1.0]
