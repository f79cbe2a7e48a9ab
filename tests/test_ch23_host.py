"""The host's share of a step: arrays in place of loops, and nothing done twice."""

import pytest
import torch

from minisgl.benchmark.__main__ import main
from minisgl.benchmark.roofline import KINDS, _busy, kind_of, measure_roofline
from minisgl.benchmark.shapes import SHAPES
from minisgl.benchmark.subject import Subject, TimedLLM, open_subject
from minisgl.benchmark.traffic import Rates, traffic_of
from minisgl.benchmark.workload import Request, Workload
from minisgl.core import Batch, SamplingParams
from minisgl.engine.sample import Sampler
from minisgl.utils.counters import Counters
from tests.driver import Driver
from tests.fakes.install import stand_ins
from tests.handmade import make_req
from tests.parity import model_under_test, prompts
from tools.models import model_path

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
CPU = torch.device("cpu")


def test_counters_are_those_of_the_requests():
    reqs = [make_req([7] * n, row, 3) for row, n in enumerate((4, 1, 9))]
    reqs[2].cached_len = 8
    counters = Counters.of(reqs)
    assert counters.table_idx.tolist() == [0, 1, 2]
    assert counters.device_len.tolist() == [4, 1, 9]
    assert counters.extend_len.tolist() == [4, 1, 1]
    assert Counters.of([]).extend_len.tolist() == []


def batch_of(*params: SamplingParams) -> Batch:
    reqs = [make_req([7, 8], row, 3) for row in range(len(params))]
    for req, one in zip(reqs, params, strict=True):
        req.sampling_params = one
    return Batch(reqs, "decode")


def test_settings_are_read_once_as_long_as_the_batch_stays():
    sampler = Sampler(CPU, 100, seed=3)
    first, second = SamplingParams(0.5), SamplingParams(0.9)
    args = sampler.prepare(batch_of(first, second))
    again = sampler.prepare(batch_of(first, second))
    assert again.temperatures is args.temperatures
    assert again.uniforms is not None and args.uniforms is not None
    assert not torch.equal(again.uniforms, args.uniforms)
    turned = sampler.prepare(batch_of(second, first))
    assert turned.temperatures is not None
    assert turned.temperatures.tolist() == pytest.approx([0.9, 0.5])
    assert sampler.prepare(batch_of(first)).temperatures.tolist() == [0.5]
    greedy = sampler.prepare(batch_of(SamplingParams(), SamplingParams()))
    assert greedy.temperatures is None and greedy.uniforms is None
    mixed = sampler.prepare(batch_of(SamplingParams(), first))
    assert mixed.temperatures.tolist() == [0.0, 0.5]


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 16])
def test_parity_of_a_mixed_load_with_pages_of_any_size(page_size):
    driver = Driver(FOLDER, page_size=page_size, overlap=True)
    for uid, ids in enumerate(prompts(FOLDER)):
        driver.submit(uid, ids, max_tokens=9 + uid % 4)
        driver.step()
    driver.run()
    driver.assert_parity()
    driver.assert_clean()


@pytest.mark.parametrize(("size", "whole"), [(64, True), (63, False)])
def test_sequences_stay_whole_where_none_can_keep_all_waiting(size, whole):
    with stand_ins("flashinfer"):
        driver = Driver(
            FOLDER,
            page_size=16,
            pages=80,
            attention_backend="fi",
            cuda_graph_bs=[size],
            max_running_req=64,
        )
        backend = driver.scheduler.engine.attn_backend
        assert backend._graph_wrappers[size]._whole == whole
        for uid in range(3):
            driver.submit(uid, PROMPTS[uid], max_tokens=4)
        driver.run()
    driver.assert_parity(length=4)
    backend._longest = 4097
    assert backend._splits(size)


def test_kinds_of_kernels():
    assert (
        kind_of("flashinfer::BatchDecodeWithPagedKVCacheKernel") == "attention"
    )
    assert kind_of("nvjet_sm90_tst_64x32_64x16_1x2_h_bz_TNT") == "products"
    assert (
        kind_of("flashinfer::norm::FusedAddRMSNormKernel")
        == "norms and rotation"
    )
    assert kind_of("flash::FlashAttnFwdSm90, cutlass::gemm") == "attention"
    assert kind_of("fused_moe_kernel") == "products"
    assert kind_of("sum_blocks_kernel") == "drawing tokens"
    assert kind_of("Memcpy HtoD (Pinned -> Device)") == "the rest"


def test_what_overlaps_is_busy_once():
    spans = [("a", 0.0, 4e6), ("b", 1e6, 2e6), ("c", 3e6, 6e6), ("d", 8e6, 9e6)]
    assert _busy(spans) == pytest.approx(7.0)


def test_traffic_counts_every_token_that_is_attended_to():
    subject = Subject(
        str(FOLDER), False, "float32", "cpu", {"num_page_override": 64}
    )
    with subject.engine() as llm:
        config = llm.config.model_config
        requests = [Request([1] * 5, 3), Request([2] * 2, 1)]
        traffic = traffic_of(llm.engine, config, requests)
        one = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4
        assert traffic.cache == one * (5 + 6 + 7 + 2)
        parameters = {
            name: w.numel()
            for name, w in llm.engine.model.state_dict().items()
            if w.dim() > 1
        }
        # The head reads one table, whether it has a copy of it or not.
        table = parameters.pop("model.embed_tokens.weight")
        body = sum(parameters.values()) - parameters.pop("lm_head.weight", 0)
        assert traffic.weights == 3 * 4 * (body + table)
    assert traffic.seconds(Rates(1e9, 1e12)) == pytest.approx(
        (traffic.cache + traffic.weights) / 1e9 + traffic.prompts / 1e12
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("copied", [True, False])
def test_the_table_of_the_vocabulary_is_read_once(monkeypatch, tied, copied):
    monkeypatch.setattr("minisgl.engine.engine.can_pack", lambda *_: copied)
    shape = SHAPES["tiny"] | {"tie_word_embeddings": tied}
    monkeypatch.setitem(SHAPES, "tiny", shape)
    settings = {"num_page_override": 8}
    with (
        open_subject(None, "tiny", "float32", "cpu", settings) as subject,
        subject.engine() as llm,
    ):
        config = llm.config.model_config
        found = traffic_of(llm.engine, config, [Request([1], 1)])
    qkv, o, mlp = (4 + 2 * 2) * 64 * 128, 4 * 64 * 128, 3 * 128 * 256
    assert found.weights == 4 * (3 * (qkv + o + mlp) + 512 * 128)


def test_a_prompt_meets_a_few_experts_and_steps_read_all():
    folder = model_path("qwen3-moe-tiny")
    settings = {"num_page_override": 64}
    subject = Subject(str(folder), False, "float32", "cpu", settings)
    with subject.engine() as llm:
        config = llm.config.model_config
        [none, ten] = (
            traffic_of(llm.engine, config, [Request([1] * n, 1)])
            for n in (0, 10)
        )
        sizes = {
            name: w.numel() for name, w in llm.engine.model.state_dict().items()
        }
    experts = sum(n for name, n in sizes.items() if ".experts." in name)
    share = config.num_experts_per_tok / config.num_experts
    assert 0 < share < 1
    rest = sum(
        n
        for name, n in sizes.items()
        if name.endswith(("_proj.weight", "gate.weight"))
    )
    heads = config.num_qo_heads * config.head_dim * config.num_layers
    # Two operations a weight and token, and causal attention.
    expected = 2 * 10 * (rest + experts * share) + 2 * 10 * 10 * heads
    assert none.prompts == 0 and ten.prompts == expected
    assert ten.weights == none.weights > 4 * experts


def test_no_round_and_no_profile_finds_its_prompts_cached(monkeypatch):
    rates, run = [], TimedLLM.run

    def watched(self, *args):
        found = run(self, *args)
        rates.append(found.hit_rate)
        return found

    monkeypatch.setattr(TimedLLM, "run", watched)
    subject = Subject(str(FOLDER), False, "float32", "cpu", {})
    measure_roofline(subject, Workload(3, 4, 6), 3, lambda said: None)
    # To warm up, three rounds, then without the profiler and with it.
    # A first token may be the same by chance.
    assert len(rates) == 6 and max(rates) < 0.2


def test_the_report_names_the_bound_the_engine_and_the_rest(capsys):
    settings = {"num_page_override": 256}
    subject = Subject(str(FOLDER), False, "float32", "cpu", settings)
    said = []
    report = measure_roofline(subject, Workload(3, 2, 6), 2, said.append)
    rows = {row[""]: row for row in report.rows}
    bound, ours = rows["the bound"], rows["the engine, quickest round"]
    assert 0 < bound["seconds"] < ours["seconds"] and len(said) == 2
    parts = [rows[name]["seconds"] for name in rows if name.startswith("to ")]
    assert sum(parts) == pytest.approx(bound["seconds"])
    watched = {name for name in rows if name.startswith("profile: ")}
    assert watched == {f"profile: {k}" for k in (*KINDS, "the rest", "Python")}
    assert rows["profile: products"]["seconds"] > 0


def test_the_command_says_what_is_wrong(monkeypatch):
    monkeypatch.setattr("sys.argv", ["benchmark", "roofline"])
    with pytest.raises(SystemExit, match="either a --model or a --shape"):
        main()
