"""Models: what config.json says, and logits that equal those of transformers."""

import functools
import json
import logging
import shutil
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from minisgl.core import Context
from minisgl.layers import get_rope
from minisgl.models import ModelConfig, RotaryConfig, create_model
from minisgl.models.utils import RopeAttn
from minisgl.utils import (
    cached_load_hf_config,
    download_hf_weight,
    init_logger,
    load_eos_token_ids,
    load_tokenizer,
    resolve_dtype,
    torch_dtype,
)
from tests.bare_model import last_logits, load_bare
from tests.handmade import make_batch, make_req
from tests.parity import assert_parity, model_under_test, prompts, reference
from tools.models import model_path

TINY = ["qwen3-tiny", "qwen2-tiny", "llama3-tiny", "mistral-tiny"]
load = functools.cache(load_bare)


@functools.cache
def load_reference(folder, dtype):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def reference_logits(folder, ids, dtype=torch.float32):
    with torch.inference_mode():
        return load_reference(folder, dtype)(torch.tensor([ids])).logits[0]


def answer(folder, prompt, max_tokens):
    """Greedy, the whole sequence computed anew for every token."""
    ids = list(prompt)
    for _ in range(max_tokens):
        logits = last_logits(*load(folder), [ids])
        ids.append(int(logits[0].argmax()))
    return ids[len(prompt) :]


def make(config):
    with torch.device("meta"):
        return create_model(ModelConfig.from_hf(config))


@pytest.fixture
def variant(tmp_path):
    """variant(model, drop, **changes): a copy with another config.json."""

    def copy(model, drop=(), **changes):
        folder = tmp_path / "variant"
        shutil.copytree(model_path(model), folder)
        file = folder / "config.json"
        old = json.loads(file.read_text())
        kept = {key: old[key] for key in old if key not in drop}
        file.write_text(json.dumps(kept | changes))
        return folder

    return copy


# The models


@pytest.mark.parity
def test_parity_of_the_model_under_test():
    folder = model_under_test("qwen3-tiny")
    for prompt in prompts(folder)[2:5]:
        expected = reference(folder, prompt, 16)
        assert_parity(answer(folder, prompt, 16), expected)


@pytest.mark.parity
@pytest.mark.parametrize("model", TINY)
def test_parity_of_every_family(model):
    prompt = prompts(model)[5]
    got = answer(model_path(model), prompt, 32)
    assert_parity(got, reference(model, prompt, 32))


@pytest.mark.parametrize("model", TINY)
def test_logits_of_a_batch_are_those_of_each_prompt_in_transformers(model):
    folder, asked = model_path(model), prompts(model)[:8]
    got = last_logits(*load(folder), asked)
    expected = [reference_logits(folder, ids)[-1] for ids in asked]
    torch.testing.assert_close(got, torch.stack(expected), rtol=0, atol=1e-4)


@pytest.mark.until("ch04", "attention then wants a KV pool in the context")
@pytest.mark.parametrize("model", TINY)
def test_logits_of_every_position_are_those_of_transformers(model):
    folder, asked = model_path(model), prompts(model)[3:5]
    reqs = [make_req(ids, row, 1) for row, ids in enumerate(asked)]
    ctx, batch = Context(), make_batch(reqs, "prefill", None)
    with torch.inference_mode(), ctx.forward_batch(batch):
        got = load(folder)[0].forward()
    expected = torch.cat([reference_logits(folder, ids) for ids in asked])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


def test_bfloat16_loses_no_more_than_in_transformers():
    folder, asked = model_path("mistral-tiny"), prompts("mistral-tiny")[2:4]
    model, config = load(folder, torch.bfloat16)
    assert {w.dtype for w in model.state_dict().values()} == {torch.bfloat16}
    narrow = last_logits(model, config, asked)
    assert narrow.dtype == torch.bfloat16
    wide = [reference_logits(folder, ids)[-1] for ids in asked]
    theirs = [
        reference_logits(folder, ids, torch.bfloat16)[-1] for ids in asked
    ]
    lost = (narrow.float() - torch.stack(wide)).std()
    assert lost < 1.5 * (torch.stack(theirs) - torch.stack(wide)).std()


def test_each_family_switches_on_what_is_its_own():
    names = {m: set(load(model_path(m))[0].state_dict()) for m in TINY}
    at = "model.layers.0.self_attn."
    qwen2 = {n for n in names["qwen2-tiny"] if n.endswith(".bias")}
    assert {n for n in qwen2 if n.startswith(at)} == {at + "qkv_proj.bias"}
    assert at + "q_norm.weight" in names["qwen3-tiny"]
    for plain in ("llama3-tiny", "mistral-tiny"):
        found = "".join(names[plain])
        assert "bias" not in found and "q_norm" not in found


def test_attention_alone_has_neither_biases_nor_norms():
    config = load(model_path("qwen3-tiny"))[1]
    names = set(RopeAttn(config, 0).state_dict())
    assert names == {"qkv_proj.weight", "o_proj.weight"}


def test_tables_are_shared_by_all_layers():
    layers = load(model_path("llama3-tiny"))[0].model.layers.op_list
    assert len({id(layer.self_attn.attn.rotary) for layer in layers}) == 1
    assert [x.self_attn.attn.layer_id for x in layers] == list(
        range(len(layers))
    )


def test_what_is_not_supported_is_refused_by_name():
    with pytest.raises(
        ValueError, match=r"'GemmaForCausalLM' \(llama\) .* Qwen3"
    ):
        make(LlamaConfig(architectures=["GemmaForCausalLM"]))
    with pytest.raises(
        ValueError, match=r"architecture '' .* is not supported"
    ):
        make(LlamaConfig())
    llama = {"architectures": ["LlamaForCausalLM"]}
    with pytest.raises(ValueError, match=r"'relu' is not .* known: silu, gelu"):
        make(LlamaConfig(hidden_act="relu", **llama))
    with pytest.raises(ValueError, match=r"'gpt2' .* no intermediate_size"):
        make(GPT2Config())


@pytest.mark.parametrize(
    ("switch", "value"),
    [
        ("attention_bias", True),
        ("mlp_bias", True),
        ("quantization_config", {"quant_method": "awq", "bits": 4}),
    ],
)
def test_switches_that_would_change_the_result_are_refused(switch, value):
    config = LlamaConfig(architectures=["LlamaForCausalLM"])
    setattr(config, switch, value)
    with pytest.raises(ValueError, match=rf"^{switch} in config.json"):
        make(config)


# The configuration


def test_sizes_are_read_and_missing_ones_follow_from_others():
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=96,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_hidden_layers=5,
        intermediate_size=128,
        vocab_size=77,
        rms_norm_eps=1e-4,
        tie_word_embeddings=True,
        max_position_embeddings=333,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )
    found = ModelConfig.from_hf(config)
    expected = {
        "num_layers": 5,
        "num_qo_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "hidden_size": 96,
        "vocab_size": 77,
        "intermediate_size": 128,
        "rms_norm_eps": 1e-4,
        "rotary_config": RotaryConfig(
            16, 16, 333, 5000.0, {"rope_type": "default"}
        ),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    }
    # A later chapter has more fields.
    assert {key: getattr(found, key) for key in expected} == expected
    config.num_key_value_heads = None
    assert ModelConfig.from_hf(config).num_kv_heads == 6


def test_c26_head_dim_is_respected():
    config = ModelConfig.from_hf(
        cached_load_hf_config(str(model_path("mistral-tiny")))
    )
    assert config.head_dim == 48
    assert config.hidden_size // config.num_qo_heads == 32
    model = load(model_path("mistral-tiny"))[0]
    attention = model.model.layers.op_list[0].self_attn
    rows = (config.num_qo_heads + 2 * config.num_kv_heads) * 48
    assert attention.qkv_proj.weight.shape == (rows, config.hidden_size)
    assert attention.o_proj.weight.shape[1] == config.num_qo_heads * 48


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
def test_c26_four_forms_of_config_json_are_one_model(variant, form):
    folder = variant("qwen3-tiny", drop=["rope_parameters"], **FORMS[form])
    model, config = load_bare(folder)
    assert config.rotary_config.base == 100000.0
    rope = model.model.layers.op_list[0].self_attn.attn.rotary
    plain = get_rope(64, 64, config.rotary_config.max_position, 100000.0)
    assert torch.equal(rope._cos_sin_cache, plain._cos_sin_cache)
    prompt = prompts("qwen3-tiny")[4]
    logits = last_logits(model, config, [prompt])[0]
    expected = reference_logits(folder, prompt)[-1]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", [*FORMS, "base elsewhere", "v5 wins"])
def test_c26_forms_that_transformers_has_not_brought_into_line(form):
    given = dict(vars(LlamaConfig(architectures=["LlamaForCausalLM"])))
    given |= {"rope_parameters": None, "num_key_value_heads": 4}
    given |= {"model_type": "llama", **FORMS.get(form, {})}
    if form == "base elsewhere":
        given |= V4 | {"rope_parameters": {"rope_type": "default"}}
    if form == "v5 wins":
        given |= V5 | {"rope_theta": 1.0, "rope_scaling": {"factor": 2.0}}
    config = ModelConfig.from_hf(SimpleNamespace(**given))
    assert config.rotary_config.base == 100000.0
    assert "factor" not in config.rotary_config.scaling


def test_c26_no_base_at_all_is_an_error_not_a_guess():
    given = dict(vars(LlamaConfig())) | {"rope_parameters": None}
    with pytest.raises(ValueError, match="states no rope_theta"):
        ModelConfig.from_hf(SimpleNamespace(model_type="llama", **given))


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


@pytest.mark.parametrize("form", ["v4", "v5"])
def test_c26_llama3_scaling_from_config_json_to_cos_and_sin(variant, form):
    extra = {"rope_theta": 500000.0, "rope_scaling": LLAMA3}
    if form == "v5":
        extra = {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}}
    folder = variant(
        "llama3-tiny",
        drop=["rope_theta", "rope_scaling"],
        max_position_embeddings=10000,
        **extra,
    )
    rope = load_bare(folder)[0].model.layers.op_list[0].self_attn.attn.rotary
    theirs = LlamaRotaryEmbedding(AutoConfig.from_pretrained(folder))
    at = torch.tensor([[0, 100, 5000, 9000]])
    cos, sin = theirs(torch.ones(1), at)
    half = cos.shape[-1] // 2
    expected = torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=-1)
    got = rope._cos_sin_cache[at[0]]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    plain = get_rope(64, 64, 10000, 500000.0)._cos_sin_cache[at[0]]
    assert (got[1:] - plain[1:]).abs().max() > 0.1


def test_c26_an_unsupported_scaling_is_a_clear_error(variant):
    ones = [1.0] * 32
    scaling = {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": ones,
        "long_factor": ones,
    }
    folder = variant("llama3-tiny", rope_scaling=scaling)
    with pytest.raises(
        ValueError, match=r"^rope scaling 'longrope' is not supported"
    ):
        load_bare(folder)


def test_a_part_of_the_head_can_be_rotated():
    config = LlamaConfig(rope_theta=1e4, partial_rotary_factor=0.25)
    rotary = ModelConfig.from_hf(config).rotary_config
    assert (rotary.head_dim, rotary.rotary_dim) == (128, 32)
    assert "partial_rotary_factor" not in rotary.scaling


def test_sequences_stay_inside_a_sliding_window():
    def longest(config):
        return ModelConfig.from_hf(config).rotary_config.max_position

    sizes = {"max_position_embeddings": 8192}
    assert longest(MistralConfig(sliding_window=512, **sizes)) == 512
    assert longest(MistralConfig(sliding_window=9999, **sizes)) == 8192
    assert longest(MistralConfig(sliding_window=None, **sizes)) == 8192
    for family in (Qwen2Config, Qwen3Config):
        config = family(**sizes)
        config.sliding_window = 512
        config.use_sliding_window = False
        assert longest(config) == 8192
        config.use_sliding_window = True
        assert longest(config) == 512


# dtype, end tokens, hub, logger


def test_c15_auto_is_what_config_json_states_not_what_is_stored():
    stated = AutoConfig.from_pretrained(model_path("qwen3-tiny"))
    assert resolve_dtype("auto", stated) == torch.float32
    stated.dtype = "bfloat16"
    assert resolve_dtype("auto", stated) == torch.bfloat16
    stated.dtype = torch.float16
    assert resolve_dtype("auto", stated) == torch.float16
    stated.dtype = None
    assert resolve_dtype("auto", stated) == torch.float32


def test_c15_auto_equals_transformers_auto_on_smollm2():
    folder = model_path("smollm2-135m")
    theirs = AutoConfig.from_pretrained(folder).dtype
    ours = resolve_dtype("auto", cached_load_hf_config(str(folder)))
    assert ours == theirs == torch.float32


def test_a_stated_dtype_counts_and_an_unknown_one_is_refused():
    assert resolve_dtype("bfloat16", None) == torch.bfloat16
    assert resolve_dtype("float16", None) == torch.float16
    assert resolve_dtype(torch.float32, None) == torch.float32
    with pytest.raises(ValueError, match=r"'int8' .* auto, float32, bfloat16"):
        resolve_dtype("int8", None)


def test_the_default_dtype_comes_back():
    with pytest.raises(RuntimeError), torch_dtype(torch.float16):
        assert torch.empty(1).dtype == torch.float16
        raise RuntimeError
    assert torch.get_default_dtype() == torch.float32


def write_json(folder, **files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return load_eos_token_ids(str(folder))


def test_end_tokens_of_all_places_are_joined(tmp_path):
    assert write_json(tmp_path, config={}) == frozenset()
    nested = {"eos_token_id": 2, "text_config": {"eos_token_id": [3, 2]}}
    assert write_json(tmp_path, config=nested) == {2, 3}
    both = write_json(tmp_path, generation_config={"eos_token_id": [0, 5]})
    assert both == {0, 2, 3, 5}


def test_a_folder_is_taken_as_it_is_and_a_wrong_name_is_said(monkeypatch):
    folder = str(model_path("qwen3-tiny"))
    assert download_hf_weight(folder) == folder
    assert load_tokenizer(folder)("a").input_ids
    asked = []

    def fetch(name, allow_patterns):
        asked.append((name, allow_patterns))
        if name == "some/model":
            return "fetched"
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert download_hf_weight("some/model") == "fetched"
    assert "*.safetensors" in asked[0][1] and "*.json" in asked[0][1]
    with pytest.raises(
        FileNotFoundError, match=r"'no/model' is .* \(ConnectionError\)"
    ):
        download_hf_weight("no/model")
    # What can only be a path is not asked for.
    for path in ("/no/model", "./no/model", "~/model", "no/such/model"):
        with pytest.raises(
            FileNotFoundError, match=f"'{path}' .*check the path"
        ):
            download_hf_weight(path)
    assert [name for name, _ in asked] == ["some/model", "no/model"]


def test_one_logger_a_name_one_line_a_message(monkeypatch, capsys):
    monkeypatch.setenv("LOG_LEVEL", "warning")
    log = init_logger("minisgl.some.part", "|rank 1")
    assert log is init_logger("minisgl.some.part", "|rank 1")
    assert len(log.handlers) == 1 and log.level == logging.WARNING
    assert init_logger("x.loud", level="debug").level == logging.DEBUG
    monkeypatch.delenv("LOG_LEVEL")
    assert init_logger("x.usual").level == logging.INFO
    log.info("quiet")
    log.warning("look")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].endswith("|part|rank 1] WARNING look")
