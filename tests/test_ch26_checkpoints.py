"""Checkpoints that are published quantised, and those that become so on the way."""

import json
import weakref
from dataclasses import replace

import pytest
import torch

from minisgl.distributed import DistributedInfo
from minisgl.engine import EngineConfig
from minisgl.kernel.quant_linear import dequantize
from minisgl.models import ModelConfig, create_model, load_model_weight
from minisgl.models import weight as weight_module
from minisgl.models.quantized import quantized_linears
from minisgl.models.shard import local_config
from minisgl.models.weight import fill_randomly
from minisgl.quant import QuantConfig
from minisgl.quant.published import read_quantization
from minisgl.utils import cached_load_hf_config
from tests import quantised
from tools.models import model_path

CPU = torch.device("cpu")
SOURCE = model_path("qwen3-tiny")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """By kind: the folder, and the one with the weights that are meant."""
    return {
        kind: quantised.publish(SOURCE, tmp_path_factory.mktemp("quant"), kind)
        for kind in quantised.KINDS
    }


def load(folder, quantization=None):
    """A model in float32 with its weights, as an engine makes it."""
    config = EngineConfig(
        str(folder), DistributedInfo(0, 1), "float32", quantization=quantization
    )
    with torch.device("meta"):
        model = create_model(config.model_config)
    load_model_weight(model, str(folder), CPU, torch.float32)
    return model


def meant(model):
    """The weights of all quantised linears, by name."""
    found = {}
    for name, op in quantized_linears(model).items():
        group = op._method._group_size(op._local_size[1])
        found[name] = dequantize(op.weight, op.weight_scale, group)
    return found


def merged(folder):
    """The same from a folder in float32: what the model computes as one."""
    state = load(folder).state_dict()
    return {
        name.removesuffix(".weight"): weight
        for name, weight in state.items()
        if name.endswith("_proj.weight")
    }


@pytest.mark.parametrize("kind", quantised.KINDS)
def test_a_published_checkpoint_means_what_its_format_says(published, kind):
    folder, plain = published[kind]
    found, expected = meant(load(folder)), merged(plain)
    assert found.keys() == expected.keys() and len(found) >= 8
    for name, weight in found.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", quantised.KINDS)
def test_ranks_cut_scales_with_their_weights(published, kind, rank):
    """Two ranks together have the whole: rows side by side, or columns."""
    folder, _ = published[kind]
    whole = meant(load(folder))
    parts = []
    for number in range(2):
        rank(number, 2)
        parts.append(meant(load(folder)))
    for name, weight in whole.items():
        first, second = (part[name] for part in parts)
        if name.endswith(("o_proj", "down_proj")):
            assert torch.equal(torch.cat([first, second], 1), weight)
            continue
        # Each rank has its share of every one of the products in one.
        heads = [128, 64, 64] if "qkv" in name else [128, 128]
        pairs = zip(first.split(heads), second.split(heads), strict=True)
        joined = torch.cat([torch.cat(pair) for pair in pairs])
        assert torch.equal(joined, weight), name


def test_groups_that_ranks_cannot_share_are_refused(published):
    folder, _ = published["int4, packed"]
    config = ModelConfig.from_hf(cached_load_hf_config(str(folder)))
    local_config(config, 4)
    coarse = replace(config.quantization, group_size=128)
    local_config(replace(config, quantization=coarse), 2)
    with pytest.raises(ValueError) as caught:
        local_config(replace(config, quantization=coarse), 4)
    assert str(caught.value) == (
        "the 256 inputs of o_proj cannot be cut over 4 ranks and into groups of "
        "128, as this checkpoint in int4 needs"
    )
    with pytest.raises(
        ValueError, match="the 128 inputs of qkv_proj cannot be"
    ):
        coarser = replace(coarse, group_size=256)
        local_config(replace(config, quantization=coarser), 1)
    whole = replace(config.quantization, format="int8", group_size=0)
    local_config(replace(config, quantization=whole), 4)


def raw(**changes):
    """A quantization_config with one thing changed."""
    made = quantised.compressed(
        "int-quantized", num_bits=8, type="int", strategy="channel"
    )
    weights = made["config_groups"]["group_0"]["weights"]
    weights |= {k: v for k, v in changes.items() if k in weights}
    return made | {k: v for k, v in changes.items() if k not in weights}


@pytest.mark.parametrize(
    ("quantization", "reason"),
    [
        (
            {"quant_method": "gptq", "bits": 4},
            "names the method 'gptq', which is",
        ),
        (
            {"quant_method": "awq"},
            "names the method 'awq', which is not supported",
        ),
        ({"quant_method": "bitsandbytes"}, "names the method 'bitsandbytes'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "has fmt 'e5m2'; only e4m3"),
        (raw(symmetric=False), r"zero point \(symmetric is false\)"),
        (raw(actorder="group"), "actorder 'group'"),
        (raw(num_bits=2), "type int with 2 bits; float with 8"),
        (raw(strategy="token"), "the strategy 'token'; tensor, channel"),
        (raw(config_groups={}), r"config_groups for \[\]; only one"),
        (raw(config_groups=["Linear"]), r"config_groups \['Linear'\], not an"),
        (
            raw(config_groups={"one": {"targets": ["Linear"]}}),
            "the group 'one' without weights, which has to be an object",
        ),
        (
            raw(config_groups={"one": {"weights": {}}}),
            "the group 'one' without targets, which has to be a list",
        ),
        (raw(config_groups={"one": 1}), "the group 'one' without targets"),
        (
            raw(ignore=["lm_head", "re:.*[a"]),
            r"has 're:\.\*\[a' in ignore, which is no regular expression: unter",
        ),
        (raw(ignore="lm_head"), "ignore 'lm_head', not a list of names"),
        (
            {"quant_method": "fp8", "modules_to_not_convert": [3]},
            r"modules_to_not_convert \[3\], not a list of names",
        ),
        (
            {"quant_method": "fp8", "weight_block_size": 128},
            "weight_block_size 128; rows and columns, two whole numbers",
        ),
        (raw(strategy="group"), "group_size None; a whole number is needed"),
        (raw(strategy="block"), "block_structure None; rows and columns"),
        (raw(num_bits=None), "type int with None bits"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(quantization, reason):
    config = cached_load_hf_config.__wrapped__(str(SOURCE))
    config.quantization_config = quantization
    with pytest.raises(ValueError, match=reason) as caught:
        ModelConfig.from_hf(config)
    assert "\n" not in str(caught.value)


def test_what_is_left_alone_is_read_from_either_list():
    left = ["lm_head", "model.layers.0.mlp.down_proj"]
    found = read_quantization(
        {"quant_method": "fp8", "modules_to_not_convert": left}
    )
    assert (found.ignored, found.group_rows, found.group_size) == (
        tuple(left),
        0,
        0,
    )
    found = read_quantization(raw() | {"ignore": left})
    assert found.ignored == tuple(left) and found.published
    assert read_quantization(None) is None


def test_a_hybrid_model_is_cut_in_groups_too():
    config = ModelConfig.from_hf(
        cached_load_hf_config(str(model_path("qwen3.5-tiny")))
    )
    values = config.linear.parts[2]
    groups = QuantConfig("int8", group_size=values, published=True)
    with pytest.raises(
        ValueError, match=f"the {values} inputs of out_proj cannot"
    ):
        sizes = {"num_qo_heads": 2 * values, "intermediate_size": 4 * values}
        local_config(replace(config, quantization=groups, **sizes), 2)


def test_an_engine_refuses_to_quantise_what_is_quantised(published):
    folder, _ = published["fp8, blocks"]
    with pytest.raises(ValueError, match="in fp8 already; leave it out"):
        load(folder, quantization="int8")
    experts = model_path("qwen3-moe-tiny")
    with pytest.raises(ValueError, match="a model with experts cannot be"):
        load(experts, quantization="int8")
    assert not quantized_linears(load(experts))


def test_a_scale_that_does_not_fit_is_named(published, tmp_path):
    folder, _ = published["fp8, blocks"]
    raw = json.loads((folder / "config.json").read_text())[
        "quantization_config"
    ]
    raw["weight_block_size"] = [64, 64]
    wrong = quantised.write(
        SOURCE, tmp_path / "wrong", quantised.load_all(folder), raw
    )
    with pytest.raises(
        ValueError, match=r"proj.weight' of .* needs 2 x 4 scales, .*4, 4"
    ):
        load(wrong)


def test_ignored_linears_stay_as_they_are(tmp_path):
    """One layer by its name, and all of another kind by a pattern."""
    quantization, quantize = quantised.KINDS["int8, channels"]
    ignore = ["lm_head", "model.layers.0.mlp", "re:.*layers.1.self_attn.o_proj"]
    stored = {}
    for name, tensor in quantised.load_all(SOURCE).items():
        left = "layers.0.mlp" in name or "layers.1.self_attn.o_proj" in name
        if left or not quantised.is_linear(name):
            stored[name] = tensor
        else:
            for part, value in quantize(tensor.float())[0].items():
                stored[f"{name.removesuffix('weight')}{part}"] = value
    settings = quantization | {"ignore": ignore}
    folder = quantised.write(SOURCE, tmp_path / "some", stored, settings)
    model = load(folder)
    left = {f"model.layers.0.mlp.{n}_proj" for n in ("gate_up", "down")}
    left.add("model.layers.1.self_attn.o_proj")
    assert quantized_linears(model).keys() == merged(SOURCE).keys() - left
    apart = settings | {"ignore": ["model.layers.0.mlp.up_proj"]}
    folder = quantised.write(SOURCE, tmp_path / "apart", stored, apart)
    with pytest.raises(
        ValueError, match=r"up_proj is not quantised, and others"
    ):
        load(folder)


@pytest.mark.parametrize("format", ["fp8", "int8", "int4"])
def test_one_whole_weight_at_a_time_is_in_memory(monkeypatch, format):
    """While a checkpoint is quantised, what is read is let go of at once."""
    alive, most = set(), 0
    merge = weight_module._merge

    def noted(*args):
        nonlocal most
        made = merge(*args)
        if made.dim() == 2 and made.shape[0] < 500:  # neither head nor table
            alive.add(key := id(made))
            weakref.finalize(made, alive.discard, key)
        most = max(most, len(alive))
        return made

    monkeypatch.setattr(weight_module, "_merge", noted)
    model = load(SOURCE, quantization=format)
    assert 1 <= most <= 2, "the last one is dropped when the next one is made"
    assert not alive
    kinds = {op.weight.dtype for op in quantized_linears(model).values()}
    assert kinds <= {torch.float8_e4m3fn, torch.int8, torch.uint8}


@pytest.mark.parametrize("format", ["fp8", "int8", "int4"])
def test_the_weights_take_less(format):
    def bytes_of(model):
        return sum(
            tensor.nbytes
            for name, tensor in model.state_dict().items()
            if "_proj.weight" in name
        )

    share = bytes_of(load(SOURCE, quantization=format)) / bytes_of(load(SOURCE))
    # In float32 4 bytes; here 1 and a scale a row, or 1/2 and one for 32.
    assert share < {"fp8": 0.26, "int8": 0.26, "int4": 0.157}[format]


@pytest.mark.parametrize("name", ["qwen3-tiny", "qwen2-tiny"])
def test_random_weights_are_quantised_too(name):
    config = EngineConfig(
        str(model_path(name)),
        DistributedInfo(0, 1),
        "float32",
        quantization="int4",
    )
    with torch.device("meta"):
        model = create_model(config.model_config)
    fill_randomly(model, CPU)
    for weight in meant(model).values():
        assert 0.015 < weight.std() < 0.025


def test_the_head_and_the_embedding_stay_as_they_are():
    state = load(SOURCE, quantization="int8").state_dict()
    plain = load(SOURCE).state_dict()
    table = "model.embed_tokens.weight"
    assert torch.equal(state[table], plain[table])
    kinds = {
        n: t.dtype for n, t in state.items() if not n.endswith("_proj.weight")
    }
    assert set(kinds.values()) == {torch.float32}
