"""Top-k: who can be drawn, how often, and that a seed decides all of it."""

import importlib.util
from pathlib import Path

import pytest
import torch

from tools.models import model_path

STAGE = Path(__file__).parents[2]
LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.5, 1.0])  # in order: 1, 3, 4, 0, 2


def load(name):
    path = STAGE / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"step0_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


topk = load("topk")
PROMPT = [51, 258, 220, 447, 313]


@pytest.fixture(scope="module")
def engine():
    folder = model_path("qwen3-tiny")
    return load("engine").Engine(folder, "cpu", torch.float32)


def draws(k, temperature, count=3000, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [topk.choose(LOGITS, k, temperature, rng) for _ in range(count)]


@pytest.mark.parametrize(("k", "temperature"), [(5, 0), (1, 1.0), (1, 0)])
def test_no_choice_is_greedy(k, temperature):
    assert set(draws(k, temperature, 20)) == {1}


@pytest.mark.parametrize("k", [2, 3, 5, 99])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_k_likeliest_are_drawn_as_softmax_says(k, temperature):
    kept = LOGITS.argsort(descending=True)[:k]
    expected = torch.zeros(5)
    expected[kept] = (LOGITS[kept] / temperature).softmax(-1)
    counts = torch.tensor(draws(k, temperature)).bincount(minlength=5)
    assert (counts / 3000 - expected).abs().max() < 0.03
    assert not counts[expected == 0].any()


def test_a_tiny_temperature_is_greedy_and_no_nan():
    assert set(draws(5, 1e-39, 20)) == {1}


def test_the_seed_decides_and_torchs_own_generator_is_left_alone(engine):
    before = torch.get_rng_state()
    args = (engine, PROMPT, 12, 50, 1.5)
    first, again, other = (
        [*topk.generate(*args, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert torch.equal(torch.get_rng_state(), before)


def test_with_k_of_one_it_is_the_greedy_answer(engine):
    got = [*topk.generate(engine, PROMPT, 16, k=1, temperature=1.0, seed=0)]
    assert got == [*engine.generate(PROMPT, 16)]


def test_each_token_is_computed_once(engine, monkeypatch):
    lengths = []
    forward = engine.forward

    def spy(tokens, cache):
        lengths.append(len(tokens))
        return forward(tokens, cache)

    monkeypatch.setattr(engine, "forward", spy)
    assert len([*topk.generate(engine, PROMPT, 5, 3, 1.0, 0)]) == 5
    assert lengths == [5, 1, 1, 1, 1]


def test_an_end_token_is_the_last_one(engine, monkeypatch):
    whole = [*topk.generate(engine, PROMPT, 12, 50, 1.5, seed=1)]
    end = whole[3]
    monkeypatch.setitem(engine.config, "eos", {end})
    got = [*topk.generate(engine, PROMPT, 12, 50, 1.5, seed=1)]
    assert got == whole[: whole.index(end) + 1]
