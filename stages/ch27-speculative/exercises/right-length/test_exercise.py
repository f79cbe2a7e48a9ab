"""Lengths that follow how drafts fare, and the same tokens."""

import pytest
import torch

from minisgl.core import Req, SamplingParams
from minisgl.scheduler.adaptive import AdaptiveDrafter
from minisgl.scheduler.drafts import BaseDrafter, Draft
from tests.parity import model_under_test, prompts
from tests.speculating import SpeculativeDriver, noisy

FOLDER = model_under_test("qwen3-tiny")


class Noting(BaseDrafter):
    """Guesses as much as it is asked for; notes how much that was."""

    def __init__(self):
        self.asked, self.gone, self.empty = [], [], False

    def propose(self, reqs, limits):
        self.asked.append([*limits])
        return [Draft([] if self.empty else [1] * n) for n in limits]

    def forget(self, req):
        self.gone.append(req)

    def reset(self):
        self.gone = []


def make(length=5):
    ids = torch.zeros(length, dtype=torch.int32)
    return Req(ids, 0, length - 1, 500, 0, SamplingParams(), None)


def grow(req, right):
    """A step in which so many drafts were right."""
    for _ in range(right + 1):
        req.append_host(torch.tensor([1], dtype=torch.int32))
    req.device_len += right + 1
    req.cached_len = req.device_len - 1


def test_lengths_follow_what_was_right():
    inner = Noting()
    drafter, req = AdaptiveDrafter(inner, first=2), make()
    for right, expected in [(2, 2), (4, 4), (8, 8), (3, 16), (4, 4), (0, 8)]:
        [draft] = drafter.propose([req], [64])
        assert len(draft.tokens) == expected
        grow(req, right)
    drafter.propose([req], [64])
    assert inner.asked[-1] == [1]


def test_each_request_has_its_own_length():
    inner = Noting()
    drafter, one, other = AdaptiveDrafter(inner, first=3), make(), make(9)
    drafter.propose([one, other], [64, 64])
    grow(one, 3)
    grow(other, 1)
    drafter.propose([other, one], [64, 64])
    assert inner.asked == [[3, 3], [2, 6]]


def test_limits_hold_and_what_they_cut_is_not_doubled():
    inner = Noting()
    drafter, req = AdaptiveDrafter(inner, first=8), make()
    drafter.propose([req], [3])
    grow(req, 3)
    drafter.propose([req], [64])
    grow(req, 6)
    drafter.propose([req], [0])
    assert inner.asked == [[3], [6], [0]]


def test_an_empty_draft_teaches_nothing():
    inner = Noting()
    drafter, req = AdaptiveDrafter(inner, first=4), make()
    inner.empty = True
    for _ in range(3):
        drafter.propose([req], [64])
        grow(req, 0)
    inner.empty = False
    drafter.propose([req], [64])
    assert inner.asked[-1] == [4]


def test_who_has_ended_is_forgotten():
    inner = Noting()
    drafter, req = AdaptiveDrafter(inner), make()
    drafter.propose([req], [4])
    drafter.forget(req)
    assert not drafter.records and inner.gone == [req]


@pytest.mark.parity
def test_the_tokens_are_the_same(tmp_path):
    """With a draft model that is sometimes right."""
    folder = noisy(FOLDER, tmp_path / "noisy", 0.1)
    driver = SpeculativeDriver(
        FOLDER,
        page_size=4,
        pages=512,
        speculative="draft",
        speculative_draft_model=str(folder),
        speculative_tokens=16,
    )
    scheduler = driver.scheduler
    adaptive = AdaptiveDrafter(scheduler.drafter)
    scheduler.drafter = adaptive
    for uid, ids in enumerate(prompts(FOLDER)[:5]):
        driver.submit(uid, ids, 48)
    driver.run()
    driver.assert_parity(length=48)
    driver.assert_every_page()
    assert not adaptive.records
    lengths = {n for counts in driver.checked for n in counts.values()}
    assert len(lengths) > 3
