"""Layers of experts: routing, the model against transformers, weights, ranks."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from minisgl import moe as moe_package
from minisgl.core import Context, set_global_ctx
from minisgl.distributed import DistributedInfo
from minisgl.engine import Engine, EngineConfig
from minisgl.layers import MoELayer
from minisgl.layers import moe as layer_module
from minisgl.models import ModelConfig, load_weight
from minisgl.models.shard import local_config
from minisgl.moe import create_moe_backend
from minisgl.moe.fused import FusedMoe, fused_topk
from minisgl.moe.torch_backend import TorchMoe
from tests.bare_model import last_logits, load_bare
from tests.driver import Driver
from tests.parity import assert_parity, model_under_test, prompts, reference
from tests.tp import Job, run_ranks
from tools.models import model_path

CPU = torch.device("cpu")
TINY = "qwen3-moe-tiny"
LAYERS, EXPERTS, HIDDEN, MIDDLE = 3, 8, 128, 96


def stored_tensors() -> dict[str, torch.Tensor]:
    found = {}
    for path in sorted(model_path(TINY).glob("*.safetensors")):
        found |= load_file(path)
    return found


def with_config(folder: Path, **changes) -> Path:
    """The tiny model under another configuration."""
    shutil.copytree(model_path(TINY), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def with_tensors(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """The tiny model with other tensors, in one file."""
    shutil.copytree(
        model_path(TINY),
        folder,
        ignore=shutil.ignore_patterns("*.safetensors*"),
    )
    save_file(tensors, folder / "model.safetensors")
    return folder


# -- routing -----------------------------------------------------------------


def test_a_token_goes_to_its_likeliest_experts():
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 0.0, 0.0, 4.0]])
    weights, ids = fused_topk(torch.zeros(2, 7), logits, 2, False)
    assert ids.tolist() == [[1, 3], [0, 3]] and ids.dtype == torch.int32
    probs = logits.softmax(-1)
    assert torch.equal(weights, probs.gather(1, ids.long()))
    weights, _ = fused_topk(torch.zeros(2, 7), logits, 2, True)
    wanted = torch.tensor([[3.0, 2.0], [5.0, 4.0]]).softmax(-1)
    torch.testing.assert_close(weights, wanted)


def test_c27_routing_is_float32_whatever_the_weights_are():
    logits = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    logits = logits.to(torch.bfloat16)
    hidden = torch.zeros(50, 8, dtype=torch.bfloat16)
    for renormalize in (True, False):
        weights, ids = fused_topk(hidden, logits, 8, renormalize)
        assert weights.dtype == torch.float32
        exact = logits.double().softmax(-1).gather(1, ids.long())
        if renormalize:
            exact = exact / exact.sum(-1, keepdim=True)
        assert (weights - exact).abs().max() < 1e-7
        # In bfloat16 it would be wrong in the third digit.
        rounded = logits.softmax(-1).gather(1, ids.long())
        if renormalize:
            rounded = rounded / rounded.sum(-1, keepdim=True)
        assert (rounded - exact).abs().max() > 1e-4


def test_as_many_rows_of_logits_as_tokens():
    with pytest.raises(AssertionError, match="one row of logits a token"):
        fused_topk(torch.zeros(2, 7), torch.zeros(3, 4), 2, True)


# -- the reference backend -----------------------------------------------------


def by_hand(x, w1, w2, weights, ids, act, on_input=False):
    """Token by token and expert by expert, in float64."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for t in range(len(x)):
        for weight, expert in zip(weights[t], ids[t], strict=True):
            token = x[t].double() * (weight if on_input else 1)
            gate, up = (w1[expert].double() @ token).chunk(2)
            y = w2[expert].double() @ (act(gate) * up)
            out[t] += y * (1 if on_input else weight)
    return out


@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("tokens, topk", [(1, 1), (1, 3), (9, 2), (9, 5)])
def test_the_reference_is_what_a_loop_computes(
    tokens, topk, activation, on_input
):
    x, w1 = torch.randn(tokens, 16), torch.randn(5, 24, 16) / 4
    w2, gates = torch.randn(5, 16, 12) / 4, torch.randn(tokens, 5)
    backend = create_moe_backend("torch")
    got = backend.forward(x, w1, w2, gates, topk, True, activation, on_input)
    weights, ids = fused_topk(x, gates, topk, True)
    act = {"silu": F.silu, "gelu": F.gelu}[activation]
    wanted = by_hand(x, w1, w2, weights, ids, act, on_input)
    assert (got - wanted).abs().max() < 1e-5
    assert got.dtype == x.dtype


def test_experts_nobody_wants_are_not_touched():
    x = torch.randn(3, 16)
    w1 = torch.full((4, 24, 16), float("nan"))
    w2 = torch.full((4, 16, 12), float("nan"))
    w1[2], w2[2] = torch.randn(24, 16), torch.randn(16, 12)
    gates = torch.tensor([[0.0, 0.0, 9.0, 0.0]]).expand(3, 4)
    got = create_moe_backend("torch").forward(x, w1, w2, gates, 1, True)
    assert torch.isfinite(got).all()


# -- names ---------------------------------------------------------------------


def test_backends_are_chosen_by_device(monkeypatch, caplog):
    assert type(create_moe_backend("auto", CPU)).__name__ == "TorchMoe"
    cuda = torch.device("cuda")
    monkeypatch.setattr(moe_package, "find_spec", lambda name: object())
    assert type(create_moe_backend("auto", cuda)).__name__ == "FusedMoe"
    monkeypatch.setattr(moe_package, "find_spec", lambda name: None)
    moe_package.logger.addHandler(caplog.handler)
    assert type(create_moe_backend("auto", cuda)).__name__ == "TorchMoe"
    moe_package.logger.removeHandler(caplog.handler)
    assert "triton is not installed" in caplog.text
    with pytest.raises(ValueError, match="needs triton"):
        create_moe_backend("fused", cuda)


def test_c32_what_cannot_run_here_is_refused_in_one_line(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(moe_package, "find_spec", lambda name: object())
    with pytest.raises(ValueError, match="needs a CUDA device; use torch"):
        Driver(model_path(TINY), moe_backend="fused")
    known = "MoE backend 'magic' is not supported; use one of torch, fused"
    with pytest.raises(ValueError, match=known):
        EngineConfig("m", DistributedInfo(0, 1), "auto", moe_backend="magic")


@pytest.mark.parametrize(
    "device, backend, asked, wanted",
    [
        ("cpu", "torch", {"cuda_graph_max_bs": 4}, 4),
        ("cpu", "torch", {}, 0),
        ("cuda", "torch", {}, 0),
        ("cuda", "torch", {"cuda_graph_max_bs": 0}, 0),
        ("cuda", "torch", {"cuda_graph_max_bs": 4}, "cannot be recorded"),
        ("cuda", "torch", {"cuda_graph_bs": [1, 2]}, "cannot be recorded"),
        ("cuda", "fused", {"cuda_graph_max_bs": 4}, 4),
    ],
)
def test_what_waits_for_the_host_is_not_recorded(
    device, backend, asked, wanted
):
    config = EngineConfig(
        str(model_path(TINY)), DistributedInfo(0, 1), "auto", **asked
    )
    made = {"torch": TorchMoe, "fused": FusedMoe}[backend]()
    engine = SimpleNamespace(
        device=torch.device(device),
        ctx=SimpleNamespace(moe_backend=made),
        attn_backend=SimpleNamespace(pads_to_context=False),
    )
    if isinstance(wanted, int):
        assert Engine._largest_recording(engine, config) == wanted
    else:
        with pytest.raises(ValueError, match=wanted):
            Engine._largest_recording(engine, config)


# -- the model -------------------------------------------------------------------


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """Folders of the tiny model by (norm_topk_prob, num_experts_per_tok)."""
    base = tmp_path_factory.mktemp("moe")
    return {
        (norm, k): with_config(
            base / f"{norm}-{k}", norm_topk_prob=norm, num_experts_per_tok=k
        )
        for norm in (True, False)
        for k in (1, 2, EXPERTS)
    }


ROUTINGS = [(norm, k) for norm in (True, False) for k in (1, 2, EXPERTS)]


@pytest.mark.parametrize("norm, k", ROUTINGS)
def test_c27_logits_are_those_of_transformers(variants, norm, k, monkeypatch):
    folder, seen = variants[norm, k], []
    model, config = load_bare(folder)
    assert config.norm_topk_prob is norm and config.num_experts_per_tok == k

    def spied(*args):
        weights, ids = fused_topk(*args)
        seen.append(ids)
        return weights, ids

    monkeypatch.setattr("minisgl.moe.torch_backend.fused_topk", spied)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    for batch in ([prompts(TINY)[0]], prompts(TINY)[:4]):
        got = last_logits(model, config, batch)
        for row, ids in zip(got, batch, strict=True):
            with torch.inference_mode():
                wanted = theirs(torch.tensor([ids])).logits[0, -1]
            assert (row - wanted).abs().max() < 1e-5 * wanted.std()
    assert len(seen) == 2 * LAYERS
    if k < EXPERTS:
        # The batch of one token leaves experts without any.
        assert all(len(ids.unique()) <= k for ids in seen[:LAYERS])


@pytest.mark.parity
@pytest.mark.parametrize("norm, k", ROUTINGS)
def test_c27_greedy_ids_are_those_of_transformers(variants, norm, k):
    folder = variants[norm, k]
    driver = Driver(folder, page_size=4)
    for uid, ids in enumerate(prompts(TINY)[:3]):
        driver.submit(uid, ids, max_tokens=10)
    driver.run()
    for uid, ids in enumerate(prompts(TINY)[:3]):
        assert_parity(driver.answers[uid], reference(folder, ids, 10))


@pytest.mark.parity
@pytest.mark.parametrize("page_size, overlap", [(1, True), (16, False)])
def test_parity_of_batches_chunks_and_hits(page_size, overlap):
    folder = model_under_test(TINY)
    settings = {"page_size": page_size, "max_extend_tokens": 40}
    driver = Driver(folder, overlap=overlap, **settings)
    for uid, ids in enumerate(prompts(folder)[:7]):
        driver.submit(uid, ids, max_tokens=8)
    driver.run()
    driver.submit(7, prompts(folder)[6], max_tokens=8)
    driver.run()
    driver.assert_parity()
    driver.assert_every_page()


def test_bf16_is_as_near_to_float32_as_transformers_is():
    folder, batch = model_path(TINY), prompts(TINY)[:5]
    mine = [
        last_logits(*load_bare(folder, dtype), batch).float()
        for dtype in (torch.float32, torch.bfloat16)
    ]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="bfloat16")
    rows = []
    for ids in batch:
        with torch.inference_mode():
            rows.append(theirs(torch.tensor([ids])).logits[0, -1].float())
    ours, others = (
        float((found - mine[0]).abs().mean())
        for found in (mine[1], torch.stack(rows))
    )
    assert ours < 1.5 * others


# -- the configuration -------------------------------------------------------------


def config_of(**changes) -> ModelConfig:
    given = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8}
    return ModelConfig.from_hf(Qwen3MoeConfig(**given | changes))


def test_a_model_without_experts_says_so():
    dense = load_bare(model_path("qwen3-tiny"))[1]
    assert not dense.is_moe
    assert (dense.num_experts, dense.moe_intermediate_size) == (0, 0)
    sizes = {"num_experts_per_tok": 3, "moe_intermediate_size": 40}
    sparse = config_of(**sizes, norm_topk_prob=True)
    assert sparse.is_moe and sparse.norm_topk_prob
    assert (sparse.num_experts, sparse.num_experts_per_tok) == (8, 3)
    assert sparse.moe_intermediate_size == 40


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"mlp_only_layers": [1]}, "mlp_only_layers in config.json"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step other than 1"),
        ({"num_experts_per_tok": 9}, "is 9 but there are 8 experts"),
        ({"num_experts_per_tok": 0}, "is 0 but there are 8 experts"),
    ],
)
def test_what_is_not_supported_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        config_of(**changes)


def test_an_unknown_activation_is_refused(tmp_path):
    folder = with_config(tmp_path / "m", hidden_act="relu6")
    with pytest.raises(ValueError, match=r"hidden_act 'relu6'.*silu, gelu"):
        load_bare(folder)


# -- weights -------------------------------------------------------------------------


def test_experts_are_stacked_gate_before_up():
    stored, name = stored_tensors(), "model.layers.1.mlp.experts"
    found = dict(load_weight(str(model_path(TINY)), CPU))
    wide, narrow = found[f"{name}.gate_up_proj"], found[f"{name}.down_proj"]
    assert wide.shape == (EXPERTS, 2 * MIDDLE, HIDDEN)
    assert narrow.shape == (EXPERTS, HIDDEN, MIDDLE)
    for expert in range(EXPERTS):
        gate, up, down = (
            stored[f"{name}.{expert}.{part}_proj.weight"]
            for part in ("gate", "up", "down")
        )
        assert torch.equal(wide[expert], torch.cat([gate, up]))
        assert torch.equal(narrow[expert], down)
    assert not any(".experts.0." in key for key in found)


def test_experts_that_are_stored_stacked_are_taken_as_they_are(tmp_path):
    tensors = dict(load_weight(str(model_path(TINY)), CPU))
    split = {}
    for key, tensor in tensors.items():
        if ".qkv_proj." not in key:
            split[key] = tensor.contiguous()
    for key, tensor in stored_tensors().items():
        if any(f".{x}_proj." in key for x in "qkv"):
            split[key] = tensor
    folder = with_tensors(tmp_path / "m", split)
    model, config = load_bare(folder)
    plain, _ = load_bare(model_path(TINY))
    batch = prompts(TINY)[:3]
    assert torch.equal(
        last_logits(model, config, batch), last_logits(plain, config, batch)
    )


@pytest.mark.parametrize("part", ["gate", "up", "down"])
@pytest.mark.parametrize("expert", [0, 5])
def test_c27_a_missing_expert_tensor_is_named(tmp_path, part, expert):
    tensors = stored_tensors()
    name = f"model.layers.2.mlp.experts.{expert}.{part}_proj.weight"
    del tensors[name]
    folder = with_tensors(tmp_path / "m", tensors)
    with pytest.raises(ValueError, match=f"{name}' is in no file"):
        Driver(folder)


def test_c27_the_last_expert_missing_altogether_is_seen(tmp_path):
    tensors = {
        key: tensor
        for key, tensor in stored_tensors().items()
        if f".experts.{EXPERTS - 1}." not in key
    }
    folder = with_tensors(tmp_path / "m", tensors)
    with pytest.raises(ValueError, match=r"wants \[8, .*checkpoint has \[7, "):
        Driver(folder)


# -- ranks -----------------------------------------------------------------------------


class Adds:
    """Stands for the communicator: the sum of what the ranks have so far."""

    total = 0

    def all_reduce(self, x):
        Adds.total = Adds.total + x
        return Adds.total


@pytest.fixture
def ranks(monkeypatch):
    """Makes layers believe that they are one of so many ranks."""

    def of(size: int) -> None:
        info = DistributedInfo(0, size)
        monkeypatch.setattr(layer_module, "get_tp_info", lambda: info)
        monkeypatch.setattr(layer_module, "DistributedCommunicator", Adds)

    ctx = Context(page_size=1)
    ctx.moe_backend = create_moe_backend("torch")
    set_global_ctx(ctx)
    return of


@pytest.mark.parametrize("size", [2, 4])
def test_the_ranks_parts_add_up(ranks, size):
    x, gates = torch.randn(7, HIDDEN), torch.randn(7, EXPERTS)
    whole = MoELayer(EXPERTS, 2, HIDDEN, MIDDLE)
    whole.gate_up_proj = torch.randn(EXPERTS, 2 * MIDDLE, HIDDEN) / 12
    whole.down_proj = torch.randn(EXPERTS, HIDDEN, MIDDLE) / 12
    wanted = whole.forward(x, gates)

    ranks(size)
    Adds.total = 0
    gate, up = whole.gate_up_proj.chunk(2, dim=1)
    pieces = [t.chunk(size, dim=1) for t in (gate, up)]
    downs = whole.down_proj.chunk(size, dim=2)
    for rank in range(size):
        part = MoELayer(EXPERTS, 2, HIDDEN, MIDDLE)
        mine = torch.cat([piece[rank] for piece in pieces], dim=1)
        assert part.gate_up_proj.shape == mine.shape
        assert part.down_proj.shape == downs[rank].shape
        part.gate_up_proj, part.down_proj = mine, downs[rank]
        got = part.forward(x, gates)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_middle_that_does_not_divide_is_refused(ranks):
    ranks(5)
    with pytest.raises(ValueError, match=r"96.*5"):
        MoELayer(EXPERTS, 2, HIDDEN, MIDDLE)


def test_an_expert_that_cannot_be_cut_is_refused_before_all_else():
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = config_of(**sizes, moe_intermediate_size=95)
    with pytest.raises(ValueError, match=r"95 columns of an expert.*2 ranks"):
        local_config(config, 2)
    # What an MLP would have does not matter: there is none.
    config = config_of(**sizes, intermediate_size=95)
    assert local_config(config, 2).num_qo_heads == 2


@pytest.mark.parity
@pytest.mark.parametrize("size", [2, 4])
def test_parity_over_ranks(size, tmp_path):
    some = prompts(TINY)[1:4]
    jobs = [Job([(ids, {"max_tokens": 12}) for ids in some])]
    ranks = run_ranks(model_path(TINY), size, jobs, tmp_path, page_size=4)
    assert len(ranks) == size
    for noted in ranks:
        answers = noted["jobs"][0]["answers"]
        for ids, got in zip(some, answers, strict=True):
            assert_parity(got, reference(TINY, ids, 12))
