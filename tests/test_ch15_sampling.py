"""Chapter 15: what requests may ask of sampling, row by row, without a scheduler."""

import math
from collections.abc import Sequence

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from minisgl.core import Batch, SamplingParams
from minisgl.engine import FAILED_TOKEN, Sampler, sample
from minisgl.engine.processors import (
    LogitBiasProcessor,
    PenaltyProcessor,
    create_processors,
)
from tests.edited import penalized
from tests.handmade import make_req

CPU = torch.device("cpu")
VOCAB = 64
NEUTRAL = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logit_bias": {},
    "stop_token_ids": [],
    "logprobs": None,
}


def drawn(**params) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0} | params)


def sampler_of(vocab: int = VOCAB, processors: Sequence = ()) -> Sampler:
    return Sampler(CPU, vocab, 0, list(processors))


def batch_of(params: Sequence[SamplingParams], length: int = 3) -> Batch:
    reqs = [make_req([0] * length, row, 8, p) for row, p in enumerate(params)]
    return Batch(reqs, "decode")


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(rows, vocab, generator=generator)


# What is asked for.


def test_c16_neutral_values_always_pass():
    assert SamplingParams(**NEUTRAL) == SamplingParams()
    assert not SamplingParams(**NEUTRAL).has_penalties


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": -2.0},
        {"presence_penalty": 2},
        {"repetition_penalty": 1e-9},
        {"repetition_penalty": 1e9},
        {"logit_bias": {str(i): -100 for i in range(300)}},
        {"logit_bias": {"0": 100.0}},
        {"stop_token_ids": [0, 7]},
        {"logprobs": 0},
        {"logprobs": 20},
    ],
)
def test_c16_values_at_the_edge_pass(fields):
    (name,) = fields
    assert getattr(SamplingParams(**fields), name) == fields[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("frequency_penalty", 2.1),
        ("frequency_penalty", "0"),
        ("presence_penalty", -2.1),
        ("presence_penalty", math.nan),
        ("presence_penalty", True),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", math.inf),
        ("repetition_penalty", 10**400),
        ("temperature", 10**400),
        ("logit_bias", [1]),
        ("logit_bias", None),
        ("logit_bias", {5: 1.0}),
        ("logit_bias", {"-1": 1.0}),
        ("logit_bias", {"5.0": 1.0}),
        ("logit_bias", {"05": 1.0}),
        ("logit_bias", {"\u0663": 1.0}),
        ("logit_bias", {"99999999999": 1.0}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {"5": math.nan}),
        ("logit_bias", {str(i): 0 for i in range(301)}),
        ("stop_token_ids", 7),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["7"]),
        ("stop_token_ids", [7.0]),
        ("stop_token_ids", list(range(301))),
        ("logprobs", 21),
        ("logprobs", -1),
        ("logprobs", True),
        ("logprobs", 1.0),
    ],
)
def test_c12_c16_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=f"^{name} .*must |^{name} must "):
        SamplingParams(**{name: value})


# Penalties.

RECIPES = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.5},
    {"frequency_penalty": 0.7},
    {"presence_penalty": -1.5},
    {
        "repetition_penalty": 2.0,
        "frequency_penalty": -0.3,
        "presence_penalty": 0.9,
    },
]


def fill(params: Sequence[SamplingParams], seed: int = 0):
    """Requests in the middle of an answer, each in its row of a token pool."""
    rng = torch.Generator().manual_seed(seed)

    def ids(n: int) -> list[int]:
        # Few different ones, so that many are there more than once.
        return torch.randint(12, (n,), generator=rng).tolist()

    pool = torch.full((len(params) + 3, 40), 13, dtype=torch.int32)
    reqs, texts = [], []
    for i, one in enumerate(params):
        prompt, answer = ids(2 + 3 * i), ids(5 * i % 11)
        req = make_req(prompt, len(params) + 2 - i, 16, one)
        for _ in answer:
            req.complete_one()
        pool[req.table_idx, : req.device_len] = torch.tensor(prompt + answer)
        reqs.append(req)
        texts.append((prompt, answer))
    return Batch(reqs, "decode"), pool, texts


def edited(processor, batch: Batch, logits: torch.Tensor) -> torch.Tensor:
    edit = processor(batch)
    return logits if edit is None else edit(logits.clone())


def test_penalties_are_those_of_a_plain_reference():
    params = [SamplingParams(**recipe) for recipe in RECIPES]
    batch, pool, texts = fill(params)
    logits = random_logits(len(params))
    got = edited(PenaltyProcessor(lambda: pool), batch, logits)
    for i, (prompt, answer) in enumerate(texts):
        expected = penalized(logits[i].tolist(), prompt, answer, params[i])
        torch.testing.assert_close(got[i], torch.tensor(expected))
    assert any(answer for _, answer in texts)


@pytest.mark.parametrize("penalty", [0.3, 1.7])
def test_repetition_is_that_of_transformers(penalty):
    params = [SamplingParams(repetition_penalty=penalty)] * 4
    batch, pool, texts = fill(params)
    logits = random_logits(4)
    got = edited(PenaltyProcessor(lambda: pool), batch, logits)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)
    for i, (prompt, answer) in enumerate(texts):
        ids = torch.tensor([prompt + answer])
        assert torch.equal(got[i : i + 1], theirs(ids, logits[i : i + 1]))


@pytest.mark.parametrize("penalty", [1e-300, 1e300])
def test_an_extreme_penalty_leaves_numbers(penalty):
    batch, pool, _ = fill([SamplingParams(repetition_penalty=penalty)])
    got = edited(PenaltyProcessor(lambda: pool), batch, random_logits(1))
    assert got.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_without_penalties_are_untouched_bit_for_bit(dtype):
    recipe = RECIPES[-1]
    params = [drawn(seed=5), SamplingParams(**recipe), SamplingParams()]
    batch, pool, _ = fill(params)
    logits = random_logits(3, seed=3).to(dtype)
    # A tie, which the lowest id wins, and would no more if a bit were lost.
    logits[2, [9, 40]] = logits[2].max() + 1
    kept, seen = logits.clone(), []
    penalties = PenaltyProcessor(lambda: pool)

    def look(batch):
        return lambda logits: seen.append(logits.clone()) or logits

    sampler = sampler_of(processors=[penalties, look])
    tokens = sampler.sample(logits, sampler.prepare(batch))
    assert torch.equal(logits, kept), "the model's own logits were written to"
    assert seen[0].dtype == torch.float32
    assert torch.equal(seen[0][[0, 2]], kept[[0, 2]].float())
    assert not torch.equal(seen[0][1], kept[1].float())
    bare = sampler_of()
    alone = bare.sample(logits, bare.prepare(batch))
    assert tokens[[0, 2]].tolist() == alone[[0, 2]].tolist()
    assert tokens[2] == 9


def test_a_penalty_smaller_than_a_step_of_bfloat16_counts():
    batch, pool, _ = fill([SamplingParams(presence_penalty=0.01)] * 2)
    pool[batch.reqs[1].table_idx, batch.reqs[1].device_len - 1] = 3
    logits = torch.zeros(2, VOCAB, dtype=torch.bfloat16)
    logits[:, [3, 50]] = 100.0  # between 64 and 128 a step is 0.5
    sampler = sampler_of(processors=[PenaltyProcessor(lambda: pool)])
    tokens = sampler.sample(logits, sampler.prepare(batch))
    assert tokens.tolist() == [3, 50]


def test_what_is_counted_is_what_the_pool_holds_when_the_step_runs():
    batch, pool, _ = fill([SamplingParams(presence_penalty=2.0)] * 2)
    req = batch.reqs[1]
    edit = PenaltyProcessor(lambda: pool)(batch)
    pool[req.table_idx, req.device_len - 1] = 33
    pool[req.table_idx, req.device_len] = 34  # nobody's yet
    got = edit(torch.zeros(2, VOCAB))
    assert got[1, 33] == -2.0 and got[1, 34] == 0.0


def test_nobody_asks_nothing_is_done():
    batch, pool, _ = fill([SamplingParams(), drawn()])
    assert PenaltyProcessor(lambda: pool)(batch) is None
    assert LogitBiasProcessor(CPU)(batch) is None
    args = sampler_of().prepare(batch)
    assert args.logprobs is None and args.edits == []


# Bias.


def test_logit_bias_adds_bans_and_forces():
    logits = random_logits(4)
    best = logits.argmax(-1).tolist()
    ban = {str(token): -100 for token in logits[0].topk(3).indices.tolist()}
    params = [
        SamplingParams(logit_bias=ban),
        SamplingParams(),
        SamplingParams(logit_bias={"17": 100}),
        SamplingParams(logit_bias={"17": 0.5, "3": -1.5, "60": -99.9}),
    ]
    processor = LogitBiasProcessor(CPU)
    batch = batch_of(params)
    for _ in range(2):  # the second time from what it remembers
        got = edited(processor, batch, logits)
        assert got[0].isneginf().sum() == 3
        assert str(int(got[0].argmax())) not in ban
        assert torch.equal(got[1], logits[1])
        assert got[2].argmax() == 17 and best[2] != 17
        expected = logits[3].clone()
        expected[[17, 3, 60]] += torch.tensor([0.5, -1.5, -99.9])
        assert torch.equal(got[3], expected)
    batch.reqs.pop(0)
    assert torch.equal(edited(processor, batch, logits[1:]), got[1:])


def test_a_bias_is_added_to_what_the_penalties_have_left():
    bias = {str(token): 10.0 - token for token in range(20)}
    params = [SamplingParams(repetition_penalty=2.0, logit_bias=bias)] * 3
    batch, pool, texts = fill(params)
    logits = random_logits(3)
    edits = [p(batch) for p in create_processors(CPU, lambda: pool)]
    got = logits.clone()
    for edit in edits:
        got = edit(got)
    for i, text in enumerate(texts):
        expected = penalized(logits[i].tolist(), *text, params[i])
        torch.testing.assert_close(got[i], torch.tensor(expected))


def test_a_bias_does_not_hide_that_logits_are_not_numbers():
    params = SamplingParams(logit_bias={"5": -100, "6": 100})
    logits = random_logits(2)
    logits[0, 5] = math.nan
    sampler = sampler_of(processors=[LogitBiasProcessor(CPU)])
    args = sampler.prepare(batch_of([params] * 2))
    assert sampler.sample(logits, args).tolist() == [FAILED_TOKEN, 6]


@pytest.mark.parametrize("temperature", [1.0, 1e300])
def test_a_banned_token_is_never_drawn(temperature):
    vocab, n = 8, 4000
    ban = {str(token): -100 for token in (0, 3, 7)}
    sampler = sampler_of(vocab, [LogitBiasProcessor(CPU)])
    params = drawn(logit_bias=ban, temperature=temperature)
    args = sampler.prepare(batch_of([params] * n))
    args.uniforms = torch.linspace(0, 1, n)
    tokens = sampler.sample(torch.zeros(n, vocab), args)
    counts = tokens.bincount(minlength=vocab).tolist()
    assert [counts[i] for i in (0, 3, 7)] == [0, 0, 0]
    assert all(abs(counts[i] - n / 5) < 3 for i in (1, 2, 4, 5, 6))


# Draws.


def test_only_rows_with_limits_are_sorted(monkeypatch):
    sizes = []
    sort = torch.Tensor.sort

    def counted(self, *args, **kwargs):
        sizes.append(len(self))
        return sort(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "sort", counted)
    limits = [{"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}]
    off = [{}, {"top_k": 0}, {"top_k": VOCAB}, {"top_p": 1.0}, {"seed": 4}]
    plain = [drawn(**each) for each in off]
    limited = [drawn(**each) for each in limits]
    greedy = [SamplingParams(top_p=0.5)]
    for params, expected in [
        (greedy + plain, []),
        (greedy * 2, []),
        (plain + limited + greedy, [3]),
        (limited, [3]),
    ]:
        sizes.clear()
        sampler = sampler_of()
        args = sampler.prepare(batch_of(params))
        sampler.sample(random_logits(len(params)), args)
        assert sizes == expected


@pytest.mark.parametrize("vocab", [3, 64, 50_000])
def test_draws_without_limits_follow_the_distribution(vocab):
    logits = random_logits(1, vocab) / 2
    n, temperature = 20_000, 0.8
    sampler = sampler_of(vocab)
    args = sampler.prepare(batch_of([drawn(temperature=temperature)]))
    rows = 500
    args.temperatures = args.temperatures.expand(rows)
    counts = torch.zeros(vocab)
    for part in range(n // rows):
        args.uniforms = (torch.arange(rows) * (n // rows) + part + 0.5) / n
        tokens = sampler.sample(logits.expand(rows, -1), args)
        counts += tokens.bincount(minlength=vocab)
    expected = torch.softmax(logits[0].double() / temperature, -1) * n
    # Evenly spaced numbers miss a share by less than one draw at either end.
    assert (counts - expected).abs().max() < 1.1


def test_random_numbers_give_the_same_shares_with_and_without_limits():
    n = 4000
    probs = torch.tensor([0.1, 0.4, 0.05, 0.3, 0.15])
    for params in (drawn(), drawn(top_p=0.9999), drawn(top_k=4)):
        sampler = sampler_of(5)
        args = sampler.prepare(batch_of([params] * n))
        tokens = sampler.sample(probs.log().expand(n, -1), args)
        counts = tokens.bincount(minlength=5)
        left = probs if params.top_k < 0 else probs * (probs > 0.05)
        expected = n * left / left.sum()
        spread = (expected * (1 - left)).sqrt()
        assert ((counts - expected).abs() <= 4 * spread).all()


def test_c13_a_seeded_draw_does_not_depend_on_its_neighbours():
    mixed = [
        drawn(seed=1),
        drawn(seed=2, top_p=0.8),
        SamplingParams(),
        drawn(seed=3, temperature=3.0),
        drawn(seed=4, top_k=7, min_p=0.01, temperature=2.0),
        drawn(seed=5, logit_bias={"3": 4.0}, frequency_penalty=1.0),
        drawn(seed=6, temperature=1e300, logit_bias={"3": -100}),
    ]
    logits = random_logits(len(mixed))

    def draw(rows: Sequence[int]) -> list[int]:
        batch, pool, _ = fill(mixed)
        batch.reqs = [batch.reqs[row] for row in rows]
        sampler = sampler_of(
            processors=[PenaltyProcessor(lambda: pool), LogitBiasProcessor(CPU)]
        )
        args = sampler.prepare(batch)
        return sampler.sample(logits[list(rows)], args).tolist()

    alone = [draw([row])[0] for row in range(len(mixed))]
    order = [6, 2, 5, 0, 4, 1, 3]
    for rows in (range(len(mixed)), order, [0, 1], [3, 0], [4, 1, 0]):
        assert draw(rows) == [alone[row] for row in rows]


@pytest.mark.until("ch23", "then what stays the same is kept")
def test_a_step_sends_the_numbers_of_its_draws_in_one_copy(monkeypatch):
    sent = []
    to_device = sample.to_device

    def counted(data, dtype, device):
        sent.append(tuple(data.shape))
        return to_device(data, dtype, device)

    monkeypatch.setattr(sample, "to_device", counted)
    params = [drawn(top_p=0.5), drawn(), drawn(top_k=3, seed=1)]
    args = sampler_of().prepare(batch_of([*params, SamplingParams()]))
    assert sent == [(6, 4)]
    assert args.top_k.tolist() == [VOCAB, VOCAB, 3, VOCAB]
    sampler_of().prepare(batch_of([SamplingParams()] * 3))
    assert len(sent) == 1


def test_c14_a_row_that_is_not_numbers_fails_alone_whatever_the_others_want():
    params = [drawn(seed=1), drawn(seed=2, top_p=0.5), SamplingParams()]
    for bad in range(3):
        for value in (math.nan, math.inf):
            logits = random_logits(3)
            sampler = sampler_of()
            args = sampler.prepare(batch_of(params))
            good = sampler.sample(logits, args).tolist()
            logits[bad, 5] = value
            got = sampler.sample(logits, args).tolist()
            good[bad] = FAILED_TOKEN
            assert got == good
