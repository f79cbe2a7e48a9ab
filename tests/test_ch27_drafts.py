"""Guesses and how they are judged, without an engine."""

import random

import numpy as np
import pytest
import torch

from minisgl.core import Req, SamplingParams
from minisgl.engine.rejection import Limits, judge, rejecting
from minisgl.engine.sample import sample_impl
from minisgl.scheduler.drafts import NgramDrafter, look_up
from minisgl.scheduler.verify import count_right

CPU = torch.device("cpu")


def find(ids, shortest=1, longest=4, count=4):
    return look_up(np.array(ids, dtype=np.int32), shortest, longest, count)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([5], []),
        ([5, 6, 7], []),
        ([1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 6]),
        # Of two places the one where more agrees, though it is older.
        ([8, 1, 2, 30, 9, 1, 2, 40, 8, 1, 2], [30, 9, 1, 2]),
        # Of two where equally much agrees, the later one.
        ([7, 1, 2, 30, 7, 1, 2, 40, 7, 1, 2], [40, 7, 1, 2]),
        # What follows runs into the end and begins again.
        ([4, 9, 1, 2, 3, 1, 2], [3, 1, 2, 3]),
        ([6, 6], [6, 6, 6, 6]),
        ([0, 6, 6, 6], [6, 6, 6, 6]),
    ],
)
def test_a_text_goes_on_as_it_did_before(ids, expected):
    assert find(ids) == expected


def test_bounds_of_what_must_agree():
    ids = [1, 2, 3, 50, 9, 3, 60, 1, 2, 3]
    assert find(ids, 1, 1, 1) == [60], "only the last token is looked at"
    assert find(ids, 1, 3, 1) == [50]
    assert find(ids, 3, 3, 1) == [50]
    assert find(ids, 4, 9, 1) == []
    assert find(ids, 1, 3, 0) == []


def slow(ids, shortest, longest, count):
    """The same, place by place."""
    best, place = 0, None
    for end in range(len(ids) - 1):
        size = 0
        while (
            size < min(longest, end + 1) and ids[end - size] == ids[-1 - size]
        ):
            size += 1
        if size >= max(best, shortest):
            best, place = size, end
    if place is None:
        return []
    text = list(ids)
    for _ in range(count):
        place += 1
        text.append(text[place])
    return text[len(ids) :]


def test_it_finds_what_a_search_place_by_place_finds():
    rng, found = random.Random(0), 0
    for _ in range(2000):
        ids = [rng.randrange(3) for _ in range(rng.randint(1, 24))]
        shortest = rng.randint(1, 4)
        longest = rng.randint(shortest, 6)
        expected = slow(ids, shortest, longest, 5)
        assert find(ids, shortest, longest, 5) == expected, ids
        found += bool(expected)
    assert 500 < found < 2000


def test_a_drafter_reads_requests():
    req = Req(
        torch.tensor([1, 2, 3, 1, 2], dtype=torch.int32),
        0, 4, 9, 0, SamplingParams(), None,
    )  # fmt: skip
    [three, one] = NgramDrafter(2, 4).propose([req, req], [3, 1])
    assert (three.tokens, one.tokens) == ([3, 1, 2], [3])
    assert three.probs is None


@pytest.mark.parametrize(
    ("drafts", "choices", "right"),
    [
        ([], [5], 0),
        ([7, 2, 9], [7, 2, 5, 8], 2),
        ([7, 2, 9], [7, 2, 9, 8], 3),
        ([7, 2, 9], [1, 2, 9, 8], 0),
        ([7, 7, 7], [7, 1, 7, 7], 1),
    ],
)
def test_drafts_count_up_to_the_first_wrong_one(drafts, choices, right):
    assert count_right(drafts, choices) == right


# What is drawn.


def chi_square(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """Of counts by outcome; about its number of outcomes if they are drawn so."""
    expected = probs.double() * counts.sum()
    some = expected > 0
    assert counts[~some].sum() == 0, "what cannot come has come"
    return float(((counts[some] - expected[some]) ** 2 / expected[some]).sum())


def make(seed, size=8, sharp=1.5):
    noise = torch.Generator().manual_seed(seed)
    logits = sharp * torch.randn(size, generator=noise)
    return torch.softmax(logits, 0), noise


@pytest.mark.parametrize("overlap", [1.0, 0.5, 0.0])
def test_kept_or_replaced_drafts_are_drawn_from_the_models_distribution(
    overlap,
):
    """With q as p, with q like it, and with q of tokens that p never takes."""
    n = 40_000
    p, noise = make(1)
    q, _ = make(2)
    p, q = p.clone(), overlap * p + (1 - overlap) * q
    if overlap == 0.0:
        p[:3] = 0.0
        q[3:] = 0.0
    p, q = p / p.sum(), q / q.sum()
    drafts = torch.multinomial(q, n, replacement=True, generator=noise)
    uniforms = torch.rand(n, generator=noise)
    rest = judge(p.expand(n, -1), q.expand(n, -1), drafts, uniforms)
    drawn = torch.multinomial(rest, 1, generator=noise).squeeze(1)
    assert chi_square(torch.bincount(drawn, minlength=8), p) < 30
    kept = (drawn == drafts).float().mean()
    assert abs(float(kept) - float(torch.minimum(p, q).sum())) < 0.01


def test_rows_that_are_not_numbers_stay_so():
    p = torch.full((2, 4), 0.25)
    p[0] = float("nan")
    q = torch.full((2, 4), 0.25)
    found = judge(p, q, torch.tensor([1, 1]), torch.tensor([0.5, 0.5]))
    assert found[0].isnan().all()
    assert found[1].tolist() == [0, 1, 0, 0]


def test_where_rounding_leaves_nothing_to_draw_the_model_draws():
    q = torch.tensor([[0.5, 0.5]])
    p = q.clone()
    p[0, 0] = torch.nextafter(q[0, 0], torch.tensor(0.0))
    almost_one = torch.nextafter(torch.tensor([1.0]), torch.tensor([0.0]))
    found = judge(p, q, torch.tensor([0]), almost_one)
    assert torch.equal(found, p)


WAYS = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 0.9, "top_p": 0.6},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 2.0, "top_k": 9, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1e-9},
]


def test_distributions_are_those_that_the_sampler_draws_from():
    noise = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(len(WAYS), 16, generator=noise)
    params = [SamplingParams(**way) for way in WAYS]
    limits = Limits.of(params, 16, CPU)
    found = limits.distribution(logits)
    n = 4000  # evenly spaced numbers draw each token as often as it is likely
    uniforms = (torch.arange(n) + 0.5) / n
    for row in range(len(WAYS)):
        one = slice(row, row + 1)
        settings = (limits.top_k, limits.top_p, limits.min_p)
        drawn = sample_impl(
            logits[one].expand(n, -1),
            limits.temperatures[one].expand(n),
            *(s[one].expand(n) for s in settings),
            uniforms,
        )
        often = torch.bincount(drawn, minlength=16) / n
        assert (often - found[row]).abs().max() < 2 / n, WAYS[row]


def test_the_edit_touches_its_rows_and_no_others():
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    params = [SamplingParams(temperature=1.0)] * 2
    probs = torch.full((2, 6), 1 / 6)
    edit = rejecting(
        torch.tensor([1, 3]),
        Limits.of(params, 6, CPU),
        torch.tensor([2, 4]),
        probs,
        torch.tensor([0.0, 0.999999]),
    )
    edited = edit(logits)
    assert torch.equal(edited[[0, 2]], before[[0, 2]])
    assert edited[1].exp().tolist() == [0, 0, 1, 0, 0, 0], "kept"
    rest = (torch.softmax(before[3], 0) - probs[1]).clamp(min=0)
    assert torch.allclose(edited[3].exp(), rest) and rest[4] == 0
