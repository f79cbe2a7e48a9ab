"""The window: transformers agrees, and no more is read than it needs."""

import functools

import pytest
import torch
from transformers import AutoModelForCausalLM

from minisgl.attention.window import WindowBackend
from tests.handmade import make_req
from tests.paged import Paged
from tests.parity import model_under_test, prompts

FOLDER = model_under_test("mistral-tiny")
PROMPTS = [p for p in prompts(FOLDER) if len(p) < 60]
STEPS = 6


def start(window, page_size=4):
    paged = Paged(FOLDER, page_size)
    paged.ctx.attn_backend = WindowBackend(paged.config, window)
    return paged


@functools.cache
def reference(window):
    return AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float32, sliding_window=window,
        attn_implementation="eager",
    ).eval()  # fmt: skip


@functools.cache
def expected(window, ids):
    with torch.inference_mode():
        return reference(window)(torch.tensor([ids])).logits[0, -1]


def check(logits, reqs, window):
    """Each row follows what its request had before the step."""
    for row, req in zip(logits, reqs, strict=True):
        ids = tuple(req.input_ids[:-1].tolist())
        close = expected(window, ids)
        torch.testing.assert_close(row, close, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("window", [1, 4, 8, 500])
def test_logits_are_those_of_transformers(window):
    paged = start(window)
    reqs = [make_req(p, row, STEPS) for row, p in enumerate(PROMPTS[:5])]
    check(paged.step(reqs, "prefill"), reqs, window)
    for _ in range(STEPS - 1):
        check(paged.step(reqs), reqs, window)


def test_a_prompt_in_two_parts():
    paged, prompt = start(8), PROMPTS[5]
    paged.step([make_req(prompt[:20], 0, 8)], "prefill")
    whole = make_req(prompt, 0, 8)
    whole.cached_len = 20
    check(paged.step([whole], "prefill"), [whole], 8)
    check(paged.step([whole]), [whole], 8)


def spy(paged):
    """The shapes of the slots of every group that is prepared."""
    shapes, backend = [], paged.ctx.attn_backend
    prepare = backend.prepare_metadata

    def noted(batch):
        prepare(batch)
        shapes.extend(g.slots.shape for g in batch.attn_metadata.groups)

    backend.prepare_metadata = noted
    return shapes


def test_a_decode_reads_one_window():
    paged = start(8)
    shapes = spy(paged)
    reqs = [make_req(p, row, STEPS) for row, p in enumerate(PROMPTS[1:5])]
    paged.step(reqs, "prefill")
    shapes.clear()
    for _ in range(3):
        check(paged.step(reqs), reqs, 8)
    assert {shape[1] for shape in shapes} == {8}


def test_a_part_of_a_prompt_reads_its_windows():
    paged, prompt = start(8), PROMPTS[5]
    paged.step([make_req(prompt[:20], 0, 8)], "prefill")
    shapes = spy(paged)
    part = make_req(prompt[:25], 0, 8)
    part.cached_len = 20
    paged.step([part], "prefill")
    assert shapes == [(1, 5 + 8 - 1)]


def test_what_lies_before_the_window_makes_no_difference():
    paged, prompt = start(4), PROMPTS[5]
    req = make_req(prompt, 0, 8)
    paged.step([req], "prefill")
    other = start(4)
    twin = make_req(prompt, 0, 8)
    other.step([twin], "prefill")
    early = other.ctx.page_table[0, : len(prompt) - 4]
    for layer in range(other.pool.num_layers):
        other.pool.k_cache(layer).flatten(0, 1)[early] = float("nan")
    assert torch.equal(paged.step([req]), other.step([twin]))
