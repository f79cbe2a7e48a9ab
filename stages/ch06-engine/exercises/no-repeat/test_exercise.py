"""No run twice: what is forbidden, to whom, and what transformers says."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation import NoRepeatNGramLogitsProcessor

from minisgl.core import Batch, SamplingParams
from minisgl.engine import Sampler
from minisgl.engine.ngram import NoRepeatNgram, banned_tokens
from tests.handmade import make_req
from tests.paged import CPU, Paged, answer
from tests.parity import model_under_test, prompts

FOLDER = model_under_test("qwen3-tiny")


def batch_of(*sequences):
    reqs = [make_req(ids, row, 8) for row, ids in enumerate(sequences)]
    return Batch(reqs, "decode")


@pytest.mark.parametrize(
    ("ids", "size", "banned"),
    [
        ([1, 2, 3, 1, 2], 3, {3}),
        ([1, 2, 3, 1, 2], 2, {3}),
        ([1, 2, 1, 3, 1], 2, {2, 3}),
        ([1, 2, 3], 1, {1, 2, 3}),
        ([1, 1, 1], 3, {1}),
        ([1, 1], 3, set()),
        ([1, 2, 3, 4], 2, set()),
        ([7], 2, set()),
        ([7], 5, set()),
    ],
)
def test_what_is_forbidden(ids, size, banned):
    assert banned_tokens(ids, size) == banned


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_transformers_forbids_the_same(size):
    rng, theirs = random.Random(size), NoRepeatNGramLogitsProcessor(size)
    for _ in range(100):
        ids = rng.choices(range(4), k=rng.randint(1, 20))
        scores = theirs(torch.tensor([ids]), torch.zeros(1, 4))[0]
        expected = {i for i in range(4) if scores[i] == -torch.inf}
        assert banned_tokens(ids, size) == expected, ids


def test_the_edit_touches_only_what_is_forbidden():
    edit = NoRepeatNgram(2)(batch_of([1, 2, 1], [3, 4], [0, 3, 0]))
    logits = torch.arange(15.0).view(3, 5)
    before = logits.clone()
    edited = edit(logits)
    assert torch.equal(logits, before)
    changed = (edited != before).nonzero().tolist()
    assert changed == [[0, 2], [2, 3]]
    assert edited[0, 2] == edited[2, 3] == -torch.inf


def test_without_anything_to_forbid_there_is_no_edit():
    assert NoRepeatNgram(2)(batch_of([1, 2, 3], [4])) is None


def test_it_looks_at_a_batch_when_it_is_prepared():
    batch = batch_of([1, 2, 1])
    edit = NoRepeatNgram(2)(batch)
    batch.reqs[0].append_host(torch.tensor([3], dtype=torch.int32))
    assert edit(torch.zeros(1, 5))[0].tolist() == [0, 0, -torch.inf, 0, 0]


def test_a_size_under_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        NoRepeatNgram(0)


def test_a_sampler_obeys():
    sampler = Sampler(CPU, 5, processors=[NoRepeatNgram(2)])
    params = SamplingParams(temperature=1.0)
    batch = batch_of([1, 2, 1], [3, 4, 3])
    batch.reqs[1].sampling_params = params
    logits = torch.tensor([0.0, 0.0, 9.0, 5.0, 30.0]).expand(2, -1).clone()
    logits[0, 4] = 0.0
    for _ in range(20):
        tokens = sampler.sample(logits, sampler.prepare(batch)).tolist()
        assert tokens[0] == 3  # 2 is forbidden
        assert tokens[1] != 4


def test_an_answer_is_that_of_transformers():
    prompt, size, count = prompts(FOLDER)[4], 3, 40
    sampler = Sampler(CPU, 512, processors=[NoRepeatNgram(size)])
    paged, req = Paged(FOLDER, 4), make_req(prompt, 0, count)
    phase = "prefill"
    while req.can_decode:
        args = sampler.prepare(Batch([req], phase))
        logits = paged.step([req], phase)
        req.input_ids[-1] = sampler.sample(logits, args)[0]
        phase = "decode"
    start = torch.tensor([prompt])
    theirs = AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype="float32"
    ).generate(
        start,
        attention_mask=torch.ones_like(start),
        do_sample=False,
        max_new_tokens=count,
        no_repeat_ngram_size=size,
        eos_token_id=None,
    )
    assert answer(req) == theirs[0, len(prompt) :].tolist()
