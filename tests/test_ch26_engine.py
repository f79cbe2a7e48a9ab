"""Engines with quantised weights: how far their logits are, and who is untouched."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import minisgl
from minisgl.attention import Demand, choose_attn_backend
from minisgl.attention.choice import why_not
from minisgl.core import SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.engine import Engine, EngineConfig
from minisgl.kvcache import create_kvcache_pool
from minisgl.llm import LLM
from minisgl.models import ModelConfig
from minisgl.models.quantized import quantized_linears
from minisgl.utils import cached_load_hf_config
from tests import quantised
from tests.driver import Driver
from tests.fakes.install import stand_ins
from tests.parity import assert_parity, model_under_test, prompts
from tests.tp import Job, run_ranks
from tools.bench_quant import all_logits, mean_kl
from tools.models import model_path

ROOT = Path(minisgl.__file__).parents[1]
FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
LENGTH = 16
BOUNDS = {
    "fp8": {"quantization": "fp8"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "fp8 KV": {"kv_cache_dtype": "fp8_e4m3"},
    "bf16": {"dtype": "bfloat16"},
}


def engine_of(folder, **settings):
    """An LLM in float32 on the CPU, with a small pool."""
    given = {"dtype": "float32", "device": "cpu", "num_page_override": 600}
    return LLM(str(folder), **given | settings)


def distance(found, expected):
    """How far logits are, in standard deviations of the right ones."""
    return float((found - expected).abs().mean() / expected.std())


# Mean distance of a logit from transformers', in standard deviations of theirs,
# that is stated for each form: between them lies a factor of two and more.
LIMITS = {"fp8": 0.16, "int8": 0.05, "int4": 0.5, "fp8 KV": 0.12, "bf16": 0.03}


@pytest.mark.parity
@pytest.mark.parametrize("form", BOUNDS)
def test_logits_stay_within_the_bound_of_their_form(form):
    ids = max(PROMPTS, key=len)
    expected = quantised.hf_logits(FOLDER, ids)
    found = all_logits(engine_of(FOLDER, **BOUNDS[form]), ids)
    off = distance(found, expected)
    assert LIMITS[form] / 20 < off < LIMITS[form], off


@pytest.mark.parity
def test_what_is_not_quantised_is_exact():
    driver = Driver(FOLDER)
    for uid, ids in enumerate(PROMPTS[:4]):
        driver.submit(uid, ids, max_tokens=LENGTH)
    driver.run()
    driver.assert_parity()


@pytest.mark.parametrize("form", ["fp8", "int8"])
def test_a_hybrid_model_has_quantised_linears_of_both_kinds(form):
    folder, ids = model_path("qwen3.5-tiny"), PROMPTS[0]
    plain = all_logits(engine_of(folder), ids)
    llm = engine_of(folder, **BOUNDS[form])
    off = distance(all_logits(llm, ids), plain)
    assert 0.001 < off < LIMITS[form], off
    assert {
        name.split(".")[-1] for name in quantized_linears(llm.engine.model)
    } == {
        *("in_proj", "out_proj", "qkv_proj", "o_proj"),
        *("gate_up_proj", "down_proj"),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model whose weights are integers times a number for each row."""
    tensors = {}
    for name, tensor in quantised.load_all(FOLDER).items():
        if quantised.is_linear(name):
            largest = tensor.float().abs().amax(1, keepdim=True)
            values = (tensor.float() / largest * 127).round()
            values[:, 3] = -128.0  # so that the scale is what it was
            tensor = values * (largest / 128)
        tensors[name] = tensor
    folder = tmp_path_factory.mktemp("whole") / "model"
    return quantised.write(FOLDER, folder, tensors)


@pytest.mark.parity
def test_weights_that_int8_holds_exactly_give_the_same_tokens(whole):
    ids = PROMPTS[0]
    expected = quantised.reference_of(whole, ids, LENGTH)
    llm = engine_of(whole, quantization="int8")
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
    found = llm.generate([ids], params, progress=False)[0]["token_ids"]
    assert_parity(found, expected)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["fp8, blocks", "int4, packed"])
def test_a_published_model_answers_as_its_weights_in_float32(tmp_path, kind):
    folder, plain = quantised.publish(FOLDER, tmp_path, kind)
    ids = PROMPTS[1]
    expected = quantised.reference_of(plain, ids, LENGTH)
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
    found = engine_of(folder).generate([ids], params, progress=False)
    assert_parity(found[0]["token_ids"], expected)


@pytest.mark.parametrize("kind", ["fp8, blocks", "int4, packed"])
def test_two_ranks_answer_as_one(tmp_path, kind):
    folder, _ = quantised.publish(model_path("qwen3-tiny"), tmp_path, kind)
    asked = [(ids, {"max_tokens": LENGTH}) for ids in PROMPTS[:3]]
    driver = Driver(folder)
    for uid, (ids, settings) in enumerate(asked):
        driver.submit(uid, ids, **settings)
    driver.run()
    notes = run_ranks(folder, 2, [Job(asked)], tmp_path / "out")
    for note in notes:
        answers = note["jobs"][0]["answers"]
        assert answers == [driver.answers[uid] for uid in range(3)]


@pytest.mark.parametrize("form", ["int8", "int4", "fp8 KV"])
def test_recorded_steps_are_those_that_are_launched(form):
    given = {"max_seq_len_override": 128, **BOUNDS[form]}
    params = SamplingParams(max_tokens=LENGTH, ignore_eos=True)
    eager = engine_of(FOLDER, **given, cuda_graph_max_bs=0)
    recorded = engine_of(FOLDER, **given, cuda_graph_bs=[1, 2, 4])
    asked = [ids[:60] for ids in PROMPTS[:3]]
    first, second = (
        [a["token_ids"] for a in llm.generate(asked, params, progress=False)]
        for llm in (eager, recorded)
    )
    assert first == second


def config_of(**settings):
    given = {"device": "cpu", "max_running_req": 64, "memory_ratio": 1.0}
    return EngineConfig(
        str(FOLDER), DistributedInfo(0, 1), "bfloat16", **given | settings
    )


def test_a_pool_in_fp8_holds_twice_as_much(monkeypatch):
    monkeypatch.setattr(Engine, "_free_memory", lambda self: 8 << 20)
    plain, small = (
        Engine(config_of(kv_cache_dtype=kind)) for kind in ("auto", "fp8_e4m3")
    )
    assert abs(small.num_pages - 2 * plain.num_pages) <= 1
    pools = [engine.ctx.kv_cache for engine in (plain, small)]
    assert pools[1].dtype == torch.float8_e4m3fn
    assert abs(pools[1]._buffer.nbytes / pools[0]._buffer.nbytes - 1) < 0.01


def test_what_is_too_large_for_the_pool_becomes_the_largest():
    config = ModelConfig.from_hf(cached_load_hf_config(str(FOLDER)))
    pool = create_kvcache_pool(
        config, 4, 1, torch.float8_e4m3fn, torch.device("cpu")
    )
    size = config.num_kv_heads * config.head_dim
    k = torch.full((2, size), 1000.0)
    k[1] = -0.3
    pool.store_kv(k, -k, torch.tensor([2, 0]), 1)
    keys, values = pool.k_cache(1).float(), pool.v_cache(1).float()
    assert (keys[2] == 448).all() and (values[2] == -448).all()
    assert (keys[0] == -0.3125).all() and (keys[1] == 0).all()


@pytest.mark.parametrize("name", ["fi", "fa"])
def test_a_backend_that_cannot_read_such_a_pool_is_refused(name):
    config = replace(
        ModelConfig.from_hf(cached_load_hf_config(str(FOLDER))),
        kv_cache_dtype="fp8_e4m3",
    )
    with stand_ins():
        demand = Demand(config, 256, torch.bfloat16, torch.device("cpu"))
        assert "not in fp8_e4m3; use torch" in why_not(name, demand)
        with pytest.raises(
            ValueError, match="cannot be used: it reads keys and"
        ):
            choose_attn_backend(name, demand)
        assert choose_attn_backend("auto", demand) == "torch"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--quantization", "gptq"],
            "error: --quantization 'gptq' is not supported; use one of fp8, int8, "
            "int4 (see python -m minisgl --help)",
        ),
        (["--kv-cache-dtype", "int8"], "'int8' is not one of auto, fp8_e4m3"),
    ],
)
def test_the_command_line_refuses_in_one_line(words, line):
    command = [sys.executable, "-m", "minisgl", "--model", str(FOLDER), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and line in done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_that_are_not_known():
    with pytest.raises(
        ValueError, match="kv_cache_dtype 'fp4' is not supported"
    ):
        config_of(kv_cache_dtype="fp4")
    with pytest.raises(ValueError, match="quantization 'nf4' is not supported"):
        config_of(quantization="nf4")


@pytest.mark.slow
def test_smollm2_keeps_its_distribution():
    """The divergences that the book prints, with room for other machines."""
    from tools.bench_quant import TEXT
    from tools.stagekit import load_tokenizer

    folder = model_path("smollm2-135m")
    ids = list(load_tokenizer(folder)(TEXT).input_ids)[:160]
    expected = quantised.hf_logits(folder, ids)
    limits = {"int8": 0.01, "fp8": 0.05, "int4": 0.6, "fp8 KV": 0.05}
    for form, limit in limits.items():
        found = all_logits(engine_of(folder, **BOUNDS[form]), ids)
        assert mean_kl(expected, found) < limit, form
