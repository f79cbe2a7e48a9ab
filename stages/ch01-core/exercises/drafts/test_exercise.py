"""Drafts: whatever is guessed, the answer is the one without guesses."""

import random

import pytest
import torch

from minisgl.core import SamplingParams
from minisgl.draft import DraftReq

PROMPT = [3, 1, 4]


def model(tokens):
    """The next token after a sequence; a small vocabulary, so that guesses hit."""
    return (7 * sum(tokens) + 3 * len(tokens) + 5 * tokens[-1]) % 5


def plain(length):
    tokens = list(PROMPT)
    for _ in range(length):
        tokens.append(model(tokens))
    return tokens[len(PROMPT) :]


def ints(numbers):
    return torch.tensor([*numbers], dtype=torch.int32)


class Run:
    """A request and a cache: which token's keys and values are in each place."""

    def __init__(self, length):
        params = SamplingParams(max_tokens=length)
        self.req = DraftReq(ints(PROMPT), 0, 0, length, 0, params)
        self.cache = [None] * 100
        self.answer, self.steps = [], 0

    def step(self, drafts):
        req = self.req
        req.propose(ints(drafts))
        assert len(req.input_ids) == req.device_len <= req.max_device_len
        start, end = req.cached_len, req.device_len
        assert 0 <= start < end
        self.cache[start:end] = req.input_ids[start:end].tolist()
        # The model reads what is cached, right or wrong.
        known = end - req.num_drafts
        said = [model(self.cache[:at]) for at in range(known, end + 1)]
        self.answer += req.accept(ints(said)).tolist()
        self.steps += 1
        assert req.num_drafts == 0
        assert req.cached_len == req.device_len - 1
        assert req.cached_len >= known
        cached = self.cache[: req.cached_len]
        assert cached == req.input_ids[: req.cached_len].tolist()

    def finish(self, guess):
        while self.req.can_decode:
            self.step(guess(len(self.answer)))
        return self.answer


def test_without_guesses_it_is_an_ordinary_step():
    run = Run(6)
    assert run.finish(lambda at: []) == plain(6)
    assert run.steps == 6
    assert run.req.remain_len == 0


@pytest.mark.parametrize("k", [1, 3, 4])
def test_right_guesses_save_steps(k):
    right = plain(40)
    run = Run(20)
    assert run.finish(lambda at: right[at : at + k]) == right[:20]
    assert run.steps == -(-20 // (k + 1))


def test_a_wrong_guess_costs_nothing_but_its_computation():
    wrong = [(token + 1) % 5 for token in plain(20)]
    run = Run(10)
    assert run.finish(lambda at: wrong[at : at + 3]) == plain(10)
    assert run.steps == 10


def test_what_is_right_after_a_wrong_guess_does_not_count():
    right = plain(10)
    run = Run(10)
    run.step([right[0], (right[1] + 1) % 5, right[2]])
    assert run.answer == right[:2]
    assert run.req.cached_len == len(PROMPT) + 1


def test_guesses_past_the_end_are_left_out():
    right = plain(10)
    run = Run(2)
    run.req.propose(ints(right[:9]))
    assert (run.req.num_drafts, run.req.device_len) == (1, len(PROMPT) + 1)
    assert Run(1).finish(lambda at: right[:9]) == right[:1]


def test_any_guesses_give_the_same_answer():
    rng = random.Random(0)
    for _ in range(200):
        length = rng.randint(1, 25)
        run = Run(length)
        answer = run.finish(
            lambda at: rng.choices(range(5), k=rng.randint(0, 6))
        )
        assert answer == plain(length)


def test_the_prompt_is_left_alone():
    prompt = ints(PROMPT)
    req = DraftReq(prompt, 0, 0, 8, 0, SamplingParams(max_tokens=8))
    req.propose(ints([1, 2]))
    req.accept(ints([1, 2, 3]))
    assert prompt.tolist() == PROMPT
