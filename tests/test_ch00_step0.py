"""Step 0 answers as transformers does, and says in one line what it cannot run."""

import functools
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from tests.parity import assert_parity, model_under_test, prompts, reference
from tools.models import model_path

SOURCE = Path(__file__).parents[1] / "stages" / "ch00-step0" / "engine.py"
SPEC = importlib.util.spec_from_file_location("step0_engine", SOURCE)
step0 = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(step0)


@functools.cache
def load(folder):
    return step0.Engine(folder, "cpu", torch.float32)


def check_parity(folder, asked, max_tokens=64):
    for prompt in asked:
        answer = list(load(folder).generate(prompt, max_tokens))
        expected = reference(folder, prompt, max_tokens, ignore_eos=False)
        assert_parity(answer, expected)


def edit(file, drop=(), **changes):
    old = json.loads(file.read_text())
    kept = {key: value for key, value in old.items() if key not in drop}
    file.write_text(json.dumps(kept | changes))


@pytest.fixture
def variant(tmp_path):
    """variant(model, **changes) copies a model and changes its config.json."""

    def make(model, drop=(), **changes):
        folder = tmp_path / "variant"
        shutil.copytree(model_path(model), folder)
        edit(folder / "config.json", drop, **changes)
        return folder

    return make


@pytest.mark.parity
def test_parity_on_a_single_file_with_q_and_k_norms():
    folder = model_under_test("qwen3-tiny")
    check_parity(folder, prompts(folder)[:5])


@pytest.mark.parity
@pytest.mark.parametrize("model", ["mistral-tiny", "qwen2-tiny"])
def test_parity_on_three_files_with_a_free_head_dim_and_on_biases(model):
    check_parity(model_path(model), prompts(model)[2:6])


@pytest.mark.parity
def test_parity_on_llama_with_a_head_of_its_own(variant):
    folder = variant("llama3-tiny", rope_scaling=None)
    check_parity(folder, prompts("llama3-tiny")[2:6])


V4 = {"rope_theta": 100000.0}
V5 = {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}
FORMS = {
    "v4": V4,
    "v5": V5,
    "both": V4 | V5,
    "null": V4 | {"rope_scaling": None},
}


@pytest.mark.parity
@pytest.mark.parametrize("form", FORMS)
def test_c26_every_form_of_the_rope_settings(variant, form):
    folder = variant("qwen3-tiny", drop=["rope_parameters"], **FORMS[form])
    assert step0.read_config(folder)["rope_theta"] == 100000.0
    check_parity(folder, prompts("qwen3-tiny")[3:4])


@pytest.mark.parametrize("position", [0, 100, 5000, 9000])
def test_c26_cosines_and_sines_are_those_of_transformers(position):
    config = LlamaConfig(hidden_size=64, num_attention_heads=1, **V5)
    cos, sin = LlamaRotaryEmbedding(config)(
        torch.ones(1), torch.tensor([[position]])
    )
    ones, zeros = torch.ones(1, 1, 32), torch.zeros(1, 1, 32)
    turned = step0.rotate(torch.cat((ones, zeros), -1), position, 100000.0)
    expected = torch.cat((cos[..., :32], sin[..., :32]), -1)
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "longrope"}}, "RoPE of type longrope"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "RoPE of type yarn"),
        ({"sliding_window": 4096}, "local window"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"model_type": "mamba"}, "model type mamba"),
    ],
)
def test_what_it_cannot_run_is_refused_in_one_line(variant, changes, message):
    with pytest.raises(ValueError, match=f"^variant: step 0 .* {message}$"):
        step0.read_config(variant("mistral-tiny", **changes))


def test_c26_scaled_rope_is_refused_and_an_unused_window_is_not(variant):
    with pytest.raises(
        ValueError, match=r"^llama3-tiny: .* RoPE of type llama3$"
    ):
        step0.Engine(model_path("llama3-tiny"), "cpu", torch.float32)
    unused = {"use_sliding_window": False, "sliding_window": 4096}
    step0.read_config(variant("qwen2-tiny", **unused))


def test_head_dim_missing_is_hidden_size_over_heads(variant):
    folder = variant("qwen2-tiny", drop=["head_dim"])
    assert step0.read_config(folder)["head_dim"] == 64


FILES = ["config.json", "generation_config.json"]


@pytest.mark.parametrize("file", FILES)
def test_end_tokens_of_both_files_end_the_answer(variant, file):
    prompt = prompts("qwen3-tiny")[2]
    free = reference("qwen3-tiny", prompt, 64).ids
    end = next(token for token in free[3:] if token not in free[:3])
    folder = variant("qwen3-tiny")
    for name in FILES:
        ids = [end, 509] if name == file else 510
        edit(folder / name, eos_token_id=ids)
    answer = list(load(folder).generate(prompt, 64))
    assert answer == free[: free.index(end) + 1]
    assert step0.read_config(folder)["eos"] == {end, 509, 510}


def test_files_that_the_index_does_not_list_are_ignored(variant):
    folder = variant("mistral-tiny")
    (folder / "model-00004-of-00003.safetensors").write_bytes(b"no tensors")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert set(load(folder).weights) == set(index["weight_map"])


def test_norm_computes_in_float32():
    x = torch.randn(
        3, 64, generator=torch.Generator().manual_seed(0)
    ).bfloat16()
    reference_norm = Qwen3RMSNorm(64, eps=1e-6).bfloat16()
    one = object.__new__(step0.Engine)
    one.config, one.weights = {"rms_norm_eps": 1e-6}, {}
    one.weights["n.weight"] = reference_norm.weight.detach()
    assert torch.equal(one.norm("n", x), reference_norm(x))


@pytest.mark.parity
def test_weights_stored_in_bfloat16_run_in_float32(variant):
    folder = variant("qwen3-tiny")
    file = folder / "model.safetensors"
    stored = {name: w.bfloat16() for name, w in load_file(file).items()}
    save_file(stored, file, {"format": "pt"})
    check_parity(folder, prompts("qwen3-tiny")[2:3], 16)


@pytest.mark.parametrize(("new", "past"), [(1, 0), (5, 0), (1, 6), (3, 4)])
def test_attend_is_causal_attention_over_grouped_heads(new, past):
    rng = torch.Generator().manual_seed(new)
    q = torch.randn(6, new, 8, generator=rng)
    k, v = torch.randn(2, 2, new + past, 8, generator=rng)
    mask = torch.ones(new, new + past, dtype=torch.bool).tril(past)
    expected = F.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=mask, enable_gqa=True
    )
    expected = expected[0].transpose(0, 1).reshape(new, 48)
    torch.testing.assert_close(step0.attend(q, k, v), expected)


def test_a_prompt_in_pieces_gives_the_same_logits_and_caches_do_not_mix():
    model, prompt = load(model_path("qwen3-tiny")), prompts("qwen3-tiny")[3]
    whole, pieces, other = {}, {}, {}
    with torch.inference_mode():
        expected = model.forward(prompt, whole)
        for piece in (prompt[:1], prompt[1:6], prompt[6:]):
            logits = model.forward(piece, pieces)
            model.forward(piece[::-1], other)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    keys, values = pieces["model.layers.2.self_attn"]
    assert keys.shape == values.shape == (2, len(prompt), 64)
