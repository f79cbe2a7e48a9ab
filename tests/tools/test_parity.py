"""The parity helper, and that the tiny models can tell a wrong engine from a right."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests import parity
from tests.parity import (
    PROMPTS,
    RandomParity,
    Reference,
    assert_parity,
    reference,
)
from tests.prompts import SEEDS
from tools.models import model_path
from tools.zoo.recipes import RECIPES
from tools.zoo.smollm2 import NAME, wheel_path

ROOT = Path(__file__).resolve().parents[2]
TINY = sorted(RECIPES)
STEPS = 32
# The older name of an argument that newer versions call `cache`.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`past_key_values`:FutureWarning"
)


def fresh(name: str):
    return AutoModelForCausalLM.from_pretrained(model_path(name)).eval()


@torch.inference_mode()
def greedy(model, prompt: list[int], shift: int = 0) -> list[int]:
    """Greedy ids; every decoded token is put `shift` positions too far."""
    out = model(torch.tensor([prompt]), use_cache=True)
    ids = [int(out.logits[0, -1].argmax())]
    for position in range(len(prompt), len(prompt) + STEPS - 1):
        out = model(
            torch.tensor([ids[-1:]]),
            past_key_values=out.past_key_values,
            position_ids=torch.tensor([[position + shift]]),
        )
        ids.append(int(out.logits[0, -1].argmax()))
    return ids


@pytest.mark.parametrize("name", TINY)
def test_fixed_prompts_are_clear_varied_and_free_of_end_tokens(name):
    ends = {
        RECIPES[name].style.id_of(token) for token in RECIPES[name].style.ends
    }
    lengths = [len(prompt) for prompt in PROMPTS[name]]
    assert len(set(lengths)) == len(lengths) >= 8
    answers = [reference(name, prompt, 64) for prompt in PROMPTS[name]]
    for answer in answers:
        assert len(answer.ids) == len(answer.gaps) == 64
        assert min(answer.gaps) > parity.CLEAR_GAP
        assert not ends & set(answer.ids)
    assert sum(len(set(answer.ids[:32])) >= 20 for answer in answers) >= 3


def test_no_two_models_give_the_same_ids():
    prompt = list(range(40, 60))
    answers = {tuple(reference(name, prompt, 16).ids) for name in TINY}
    assert len(answers) == len(TINY)


@pytest.mark.parametrize("name", TINY)
def test_shifting_only_the_decoded_positions_shows(name):
    model = fresh(name)
    for prompt in PROMPTS[name][2:5]:
        right = reference(name, prompt, 64).ids[:STEPS]
        assert greedy(model, prompt) == right
        assert greedy(model, prompt, shift=1) != right


@pytest.mark.parametrize(
    "name",
    ["qwen3-tiny", "qwen3-moe-tiny", "qwen3.5-tiny", "qwen3.5-moe-tiny"],
)
@pytest.mark.parametrize("norm", ["q_norm", "k_norm"])
def test_dropping_a_norm_of_q_or_k_shows(name, norm):
    model = fresh(name)
    setattr(model.model.layers[-1].self_attn, norm, torch.nn.Identity())
    for prompt in PROMPTS[name][2:5]:
        assert greedy(model, prompt) != reference(name, prompt, 64).ids[:STEPS]


def test_dropping_any_one_bias_shows():
    prompt = PROMPTS["qwen2-tiny"][3]
    right = reference("qwen2-tiny", prompt, 64).ids[:STEPS]
    model = fresh("qwen2-tiny")
    biases = [
        p for name, p in model.named_parameters() if name.endswith("bias")
    ]
    assert len(biases) == 3 * model.config.num_hidden_layers
    for bias in biases:
        kept = bias.detach().clone()
        bias.data.zero_()
        assert greedy(model, prompt) != right
        bias.data.copy_(kept)
    assert greedy(model, prompt) == right


def test_llama3_scaling_shows():
    model = fresh("llama3-tiny")
    rotary = model.model.rotary_emb
    dim = torch.arange(0, 64, 2) / 64
    assert not torch.allclose(rotary.inv_freq, 500000.0**-dim)
    rotary.inv_freq.copy_(500000.0**-dim)
    prompt = PROMPTS["llama3-tiny"][3]
    assert (
        greedy(model, prompt)
        != reference("llama3-tiny", prompt, 64).ids[:STEPS]
    )


@pytest.mark.slow
@pytest.mark.skipif(not wheel_path().is_file(), reason="SmolLM2 is not fetched")
def test_smollm2_prompts_are_clear():
    prompts = PROMPTS[NAME]
    assert len(prompts) >= 8
    for prompt in prompts:
        assert min(reference(NAME, prompt, 64).gaps) > parity.CLEAR_GAP


def test_reference_stops_at_an_end_token_when_asked(monkeypatch):
    prompt = PROMPTS["qwen3-tiny"][4]
    ids = reference("qwen3-tiny", prompt, 8).ids
    model, _ = parity._load(model_path("qwen3-tiny"))
    monkeypatch.setattr(parity, "_load", lambda folder: (model, [ids[2]]))
    folder = model_path("qwen3-tiny")
    stopped = parity._generate(folder, prompt, 8, ignore_eos=False)
    assert stopped.ids == ids[: ids.index(ids[2]) + 1]
    assert len(stopped.gaps) == len(stopped.ids)


def test_reference_is_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("MINISGL_CACHE", str(tmp_path))
    first = reference("qwen3-tiny", [1, 2, 3], 4)
    monkeypatch.setattr(parity, "_load", None)
    assert reference("qwen3-tiny", [1, 2, 3], 4) == first
    with pytest.raises(TypeError):
        reference("qwen3-tiny", [1, 2, 3], 5)


def test_assert_parity_names_position_ids_and_gap():
    expected = Reference([5, 6, 7, 8], [0.1, 0.2, 0.03, 0.4])
    assert_parity([5, 6, 7, 8], expected)
    with pytest.raises(
        AssertionError, match=r"token 2: expected 7, got 9; .*3\.0e-02"
    ):
        assert_parity([5, 6, 9, 8], expected)
    with pytest.raises(
        AssertionError, match="3 ids where transformers gives 4"
    ):
        assert_parity([5, 6, 7], expected)
    with pytest.raises(AssertionError, match="5 ids"):
        assert_parity([5, 6, 7, 8, 9], expected)


def test_random_parity_counts_near_ties():
    near = Reference([1] * 1000, [0.1] * 999 + [5e-5])
    clear = Reference([1] * 1000, [0.1] * 1000)
    other = [1] * 999 + [2]
    counted = RandomParity()
    with pytest.raises(AssertionError, match="token 999"):
        counted.check(other, clear)
    counted.check(other, near)
    with pytest.raises(AssertionError, match="more than 1 in 2000"):
        counted.finish()
    counted.check(clear.ids, clear)
    counted.finish()
    with pytest.raises(AssertionError, match="no token"):
        RandomParity().finish()


def test_prompts_by_folder_and_random_prompts():
    assert parity.prompts(model_path("qwen3-tiny")) == PROMPTS["qwen3-tiny"]
    assert set(SEEDS) == set(TINY)
    drawn = parity.random_prompts(1, 50, 2, 9, vocab=100)
    assert drawn == parity.random_prompts(1, 50, 2, 9, vocab=100)
    assert {len(prompt) for prompt in drawn} == set(range(2, 10))
    assert set(itertools.chain(*drawn)) <= set(range(100))


def test_model_under_test_may_be_overridden(monkeypatch):
    assert parity.model_under_test("qwen3-tiny").name == "qwen3-tiny"
    monkeypatch.setenv("MINISGL_TEST_MODEL", "qwen2-tiny")
    assert parity.model_under_test("qwen3-tiny").name == "qwen2-tiny"


@pytest.mark.parametrize(
    ("chapter", "skipped"), [("", 2), ("4", 1), ("ch03", 0)]
)
def test_until_skips_from_that_chapter_on(
    tmp_path, monkeypatch, chapter, skipped
):
    (tmp_path / "tests").mkdir()
    conftest = (ROOT / "tests" / "conftest.py").read_text()
    (tmp_path / "tests" / "conftest.py").write_text(conftest)
    (tmp_path / "stages" / "ch05-attention").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n    until(chapter, reason): x\n"
    )
    (tmp_path / "tests" / "test_x.py").write_text(
        "import pytest\n"
        "@pytest.mark.until(4, reason='the pool is bumped')\n"
        "def test_a(): pass\n"
        "@pytest.mark.until('ch05', reason='inline')\n"
        "def test_b(): pass\n"
        "@pytest.mark.until(6, 'later')\n"
        "def test_c(): pass\n"
    )
    monkeypatch.setenv("MINISGL_CHAPTER", chapter)
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert f"{3 - skipped} passed" in done.stdout
    assert done.stdout.count("SKIPPED") == skipped
    assert ("holds until ch04: the pool is bumped" in done.stdout) == (
        skipped > 0
    )
