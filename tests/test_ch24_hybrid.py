"""A hybrid model: the tokens of transformers, and states that stay apart."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from minisgl.attention.segments import NOWHERE, cut_into_waves
from minisgl.benchmark.shapes import shape_folder
from minisgl.core import Batch
from minisgl.kernel import delta
from minisgl.kernel.delta_rule import (
    CHUNK,
    conv_step,
    conv_tokens,
    delta_chunks,
    delta_step,
)
from minisgl.kvcache.hybrid_cache import HybridHandle, HybridRadixCache
from minisgl.kvcache.radix_cache import RadixPrefixCache
from minisgl.kvcache.state_pool import StatePool, slot_bytes
from minisgl.models import ModelConfig, create_model, load_weight
from minisgl.models.shard import local_config
from minisgl.selfcheck.delta import check_delta
from minisgl.selfcheck.report import Setting
from minisgl.utils import cached_load_hf_config
from tests import delta as on_device
from tests.driver import Driver, solo
from tests.fakes.install import stand_ins
from tests.late_device import make_late
from tests.parity import model_under_test, prompts, reference
from tests.prompts import random_prompt
from tests.tp import Job, run_ranks
from tools.models import model_path

FOLDER = model_under_test("qwen3.5-tiny")
PROMPTS = prompts(FOLDER)
MOE = "qwen3.5-moe-tiny"
CPU = torch.device("cpu")
LENGTH = 20
ASKED = [random_prompt(0, 30), random_prompt(0, 5)]


def drive(folder=FOLDER, **settings) -> Driver:
    return Driver(folder, **({"overlap": True} | settings))


def states_of(driver: Driver) -> StatePool:
    return driver.scheduler.engine.attn_backend.linear.states


def computed(driver: Driver, uid: int) -> int:
    """Tokens of a request that prefill batches have computed."""
    return sum(step.tokens.get(uid, 0) for step in driver.prefills())


def answer(driver: Driver, uid: int, ids, max_tokens: int = LENGTH) -> int:
    """Run one request alone; returns the tokens of its prompt it computed."""
    driver.submit(uid, ids, max_tokens)
    driver.run()
    return computed(driver, uid)


# -- the rule ------------------------------------------------------------------


def made(tokens: int, heads: int = 3, k_dim: int = 8, v_dim: int = 5):
    """q, k, v, g, beta and a state, in float64."""
    generator = torch.Generator().manual_seed(tokens)

    def draw(*shape):
        return torch.randn(
            *shape, generator=generator, dtype=torch.float64
        ).requires_grad_(False)

    q, k = draw(2, tokens, heads, k_dim)
    k = k / k.norm(dim=-1, keepdim=True)
    gates = draw(tokens, heads), draw(tokens, heads).sigmoid()
    v, g, beta = draw(tokens, heads, v_dim), -gates[0].exp(), gates[1]
    return q, k, v, g, beta, draw(heads, k_dim, v_dim)


def by_hand(q, k, v, g, beta, state):
    """The rule, one token and one head after the other."""
    out, state = torch.zeros_like(v), state.clone()
    for t in range(len(q)):
        for h in range(q.shape[1]):
            faded = g[t, h].exp() * state[h]
            wrong = v[t, h] - faded.T @ k[t, h]
            state[h] = faded + torch.outer(k[t, h], beta[t, h] * wrong)
            out[t, h] = state[h].T @ q[t, h]
    return out, state


@pytest.mark.parametrize("tokens", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 150])
def test_chunks_and_steps_are_the_rule(tokens):
    q, k, v, g, beta, state = made(tokens)
    wanted, last = by_hand(q, k, v, g, beta, state)
    out, end = delta_chunks(q, k, v, g, beta, state)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(end, last)
    rows = state.unsqueeze(0)
    for t in range(tokens):
        one = [x[t : t + 1] for x in (q, k, v, g, beta)]
        out, rows = delta_step(*one, rows)
        torch.testing.assert_close(out[0], wanted[t])
    torch.testing.assert_close(rows[0], last)


def test_heads_that_fade_at_once_do_not_overflow():
    q, k, v, g, beta, state = made(CHUNK)
    out, end = delta_chunks(q, k, v, 1e4 * g, beta, state)
    wanted, last = by_hand(q, k, v, 1e4 * g, beta, state)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(end, last)


def test_the_convolution_sees_what_came_before():
    x, weight = torch.randn(9, 6), torch.randn(6, 4)
    zeros = torch.zeros(6, 3)
    whole, past = conv_tokens(x, weight, zeros)
    first, between = conv_tokens(x[:2], weight, zeros)
    rest, end = conv_tokens(x[2:], weight, between)
    torch.testing.assert_close(torch.cat([first, rest]), whole)
    assert torch.equal(end, past) and torch.equal(past, x[-3:].T)
    rows = zeros.unsqueeze(0)
    for t in range(len(x)):
        out, rows = conv_step(x[t : t + 1], weight, rows)
        torch.testing.assert_close(out[0], whole[t])
    assert torch.equal(rows[0], past)


# -- kernels -------------------------------------------------------------------


@pytest.fixture(scope="module")
def interpreted():
    """What tests/delta.py found, with Triton's interpreter on the CPU."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    root = Path(delta.__file__).parents[2]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    program = [sys.executable, str(root / "tests" / "delta.py"), str(FOLDER)]
    done = subprocess.run(
        [*program, json.dumps(ASKED)],
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_kernels_are_as_torch(interpreted):
    assert max(interpreted["apart"]["float32"].values()) < 2e-5
    assert max(interpreted["apart"]["bfloat16"].values()) < 0.1


@pytest.mark.parity
def test_parity_through_the_kernels(interpreted):
    for ids, got in zip(ASKED, interpreted["ids"], strict=True):
        assert got == reference(FOLDER, ids, 64).ids[:4]
    # Two layers; two chunks of prompts, and decode steps after them.
    calls = interpreted["calls"]
    assert calls["prefill"] == 4 and calls["decode"] >= 6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype, far", [("float32", 1e-4), ("bfloat16", 0.1)])
def test_kernels_on_a_gpu_are_as_torch(dtype, far):
    found = on_device.apart("cuda", getattr(torch, dtype))
    assert max(found.values()) < far, found


@pytest.mark.parity
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("budget", [3, 64, 10_000])
def test_a_gpu_gives_the_tokens_of_transformers(budget):
    driver = drive(
        device="cuda", max_extend_tokens=budget, cuda_graph_bs=[2, 4, 8]
    )
    for uid, ids in enumerate(PROMPTS[:8] * 2):
        driver.submit(uid, ids, LENGTH)
    driver.run()
    driver.assert_parity()
    driver.assert_every_page()


def test_the_self_check_compares_both_forms(monkeypatch):
    setting = Setting(CPU, None)
    assert "steps" in check_delta(setting)
    right = delta.delta_decode_torch

    def wrong(qkv, gates, *args):
        return right(qkv, gates + 0.1, *args)

    monkeypatch.setattr(delta, "delta_decode_torch", wrong)
    with pytest.raises(AssertionError, match=r"^steps in torch.float32"):
        check_delta(setting)


def test_on_a_cpu_torch_computes_the_rule():
    assert "TRITON_INTERPRET" not in os.environ
    assert not delta.runs_triton(CPU)


# -- parity --------------------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("budget", [1, 3, 63, 64, 65, 10_000])
def test_c08_every_chunk_budget_gives_the_same_tokens(budget):
    driver = drive(max_extend_tokens=budget)
    for uid, ids in enumerate(PROMPTS):
        driver.submit(uid, ids, LENGTH)
    driver.run()
    driver.assert_parity()
    assert all(
        sum(step.tokens.values()) <= budget for step in driver.prefills()
    )
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("cache", ["radix", "naive"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_settings_do_not_change_the_tokens(page_size, cache, overlap):
    settings = {"page_size": page_size, "cache_type": cache, "overlap": overlap}
    driver = drive(max_extend_tokens=40, pages=2048 // page_size, **settings)
    base = PROMPTS[-1]
    some = [*PROMPTS[3:7], base, base, base[:60] + PROMPTS[4], base[:-1]]
    for start in (0, 100):
        for uid, ids in enumerate(some, start):
            driver.submit(uid, ids, LENGTH)
            driver.step()
    driver.run()
    driver.assert_parity()
    hits = sum(
        len(driver.prompts[uid]) - computed(driver, uid)
        for uid in driver.answers
    )
    assert (hits > 300) if cache == "radix" else (hits == 0)
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("name", [FOLDER, MOE])
def test_recorded_steps_write_states_where_they_are(name):
    driver = drive(
        model_path(str(name)),
        cuda_graph_bs=[2, 4, 8],
        max_seq_len_override=256,
        max_extend_tokens=70,
    )
    some = prompts(name)
    for uid, ids in enumerate(some[:7]):
        driver.submit(uid, ids, 4 + 3 * uid)
        driver.step()
    driver.run()
    driver.assert_parity()
    states, dummy = states_of(driver), driver.scheduler.engine.dummy_req
    assert states.recurrent[:, dummy.table_idx].any(), "no dummy was computed"
    assert not states.recurrent[:, states.zeros].any()
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("name", ["fi", "fa,fi"])
def test_each_attention_backend_finds_its_metadata(name):
    with stand_ins():
        driver = drive(
            attention_backend=name,
            page_size=4,
            pages=512,
            cuda_graph_bs=[1, 2, 4, 6],
            max_seq_len_override=256,
            max_extend_tokens=30,
        )
        for uid, ids in enumerate(PROMPTS[2:8]):
            driver.submit(uid, ids, (16, 6, 9)[uid % 3])
            driver.step()
        driver.run()
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("budget", [2, 10_000])
def test_experts_beside_a_shared_one(budget):
    driver = drive(model_path(MOE), max_extend_tokens=budget)
    some = prompts(MOE)
    for uid, ids in enumerate([*some, some[-1]]):
        driver.submit(uid, ids, LENGTH)
    driver.run()
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("name", [FOLDER, MOE])
def test_two_ranks_have_half_of_the_heads_each(name, tmp_path):
    folder, some = model_path(str(name)), prompts(name)
    jobs = [
        Job([(ids, {"max_tokens": LENGTH}) for ids in some[2:6]]),
        Job([(some[5] + [7], {"max_tokens": LENGTH})]),
    ]
    ranks = run_ranks(folder, 2, jobs, tmp_path, max_extend_tokens=20)
    for number, job in enumerate(jobs):
        answers = [rank["jobs"][number]["answers"] for rank in ranks]
        assert answers[0] == answers[1]
        for (ids, _), got in zip(job.requests, answers[0], strict=True):
            assert got == reference(folder, ids, 64).ids[:LENGTH]


# -- states --------------------------------------------------------------------


@pytest.mark.parity
def test_c08_a_reused_slot_starts_from_zeros():
    driver = drive(max_running_req=2, max_extend_tokens=30)
    states, zeros = states_of(driver), states_of(driver).zeros
    for uid, ids in enumerate(PROMPTS[3:8]):
        for pool in (states.recurrent, states.conv):
            pool[:, :zeros] = torch.nan
        answer(driver, uid, ids)
        assert not driver.ended[uid].finish_reason.startswith("error")
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True])
def test_c08_states_stay_apart_and_come_back_after_aborts(overlap):
    driver = drive(overlap=overlap, max_running_req=4, max_extend_tokens=25)
    engine, seen = driver.scheduler.engine, set()
    run = engine.forward_batch

    def noted(batch: Batch, *args):
        rows = [req.table_idx for req in batch.reqs]
        assert len(set(rows)) == len(rows), "two requests have one state"
        seen.update(rows)
        return run(batch, *args)

    engine.forward_batch = noted
    for uid in range(14):
        driver.submit(uid, PROMPTS[uid % len(PROMPTS)], 30)
    dropped = set()
    for step in range(400):
        if step % 5 == 4 and step // 5 < 14 and (step // 5) % 2:
            # In the queue, between two chunks, or in the middle of an answer.
            dropped.add(step // 5)
            driver.abort(step // 5)
        if driver.idle:
            break
        driver.step()
    assert seen == set(range(4))
    whole = [uid for uid in range(14) if len(driver.answers[uid]) == 30]
    assert set(range(14)) - set(whole) <= dropped and len(whole) < 14
    driver.assert_parity(*whole)
    states = states_of(driver)
    live = driver.scheduler.cache_manager.prefix_cache._snapshots.values()
    alive = [one.slot for one in live if one.slot is not None]
    assert len(set(alive)) == len(alive)
    assert states.num_free + len(alive) == states.num_snapshots
    driver.assert_every_page()
    assert states.num_free == states.num_snapshots


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 16])
def test_c08_a_prefix_is_reused_where_a_state_was_kept(page_size):
    driver = drive(page_size=page_size, pages=4096 // page_size)
    base = random_prompt(1, 90)
    other, third = base[:70] + PROMPTS[4], base[:70] + PROMPTS[5]
    whole = page_size * (89 // page_size)
    half = page_size * (70 // page_size)
    assert answer(driver, 0, base) == 90
    # The same prompt: its last page that leaves a token was kept.
    assert answer(driver, 1, base) == 90 - whole
    # It leaves the tree where nobody kept a state, and now one is.
    assert answer(driver, 2, other) == len(other)
    assert answer(driver, 3, third) == len(third) - half
    # All three kinds in one batch.
    for uid, ids in enumerate([base, third, PROMPTS[6], base[:75]], 4):
        driver.submit(uid, ids, LENGTH)
    driver.run()
    assert computed(driver, 4) == 90 - whole
    known = page_size * ((len(third) - 1) // page_size)
    assert computed(driver, 5) == len(third) - known
    assert computed(driver, 6) == len(PROMPTS[6])
    assert computed(driver, 7) == 75 - half
    # The next turn of a conversation.
    turn = base + driver.answers[0] + PROMPTS[3]
    assert answer(driver, 8, turn) == len(turn) - whole
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
def test_a_state_lost_to_others_is_computed_again():
    driver = drive(max_running_req=2)
    assert states_of(driver).num_snapshots == 2
    some = [random_prompt(seed, 40) for seed in range(4)]
    for uid, ids in enumerate(some):
        assert answer(driver, uid, ids, 5) == 40
    assert answer(driver, 4, some[3], 5) == 1
    assert answer(driver, 5, some[0], 5) == 40
    assert answer(driver, 6, some[2], 5) == 40
    assert answer(driver, 7, some[3], 5) == 40  # used longest ago by then
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
def test_a_state_goes_with_the_pages_it_belongs_to():
    driver = drive(pages=130, max_running_req=2)
    first, second = random_prompt(0, 60), random_prompt(1, 110)
    answer(driver, 0, first)
    assert answer(driver, 1, second) == 110  # takes half of the first's pages
    assert answer(driver, 2, first) == 60
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
def test_many_that_part_at_one_place_take_one_slot_for_it():
    driver = drive(max_running_req=8)
    base = random_prompt(2, 50)
    answer(driver, 0, base)
    taken, states = [], states_of(driver)
    take = states.take

    def noted(length, busy=()):
        taken.append(length)
        return take(length, busy)

    states.take = noted
    for uid in range(1, 6):
        driver.submit(uid, base[:30] + random_prompt(uid, 20), 5)
    driver.run()
    assert sorted(taken) == [30, 49, 49, 49, 49, 49]
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
def test_a_state_that_a_batch_reads_is_not_given_away():
    driver = drive(max_running_req=2)
    first, second = random_prompt(7, 30), random_prompt(8, 30)
    for uid, ids in enumerate([first, second]):
        answer(driver, uid, ids, 3)
    # Both snapshots are read, and there are no more places than these.
    driver.submit(2, first + PROMPTS[3], 5)
    driver.submit(3, second + PROMPTS[3], 5)
    driver.run()
    assert computed(driver, 2) == computed(driver, 3) == 1 + len(PROMPTS[3])
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_device_that_is_late_finds_every_state_in_time(page_size):
    driver = drive(
        page_size=page_size,
        pages=400 // page_size,
        max_running_req=3,
        max_extend_tokens=30,
    )
    make_late(driver.scheduler)
    base = random_prompt(9, 60)
    some = [base, base[:40] + PROMPTS[4], base[:40] + PROMPTS[3], base]
    some += [*PROMPTS[:6], base[:41]]
    for uid, ids in enumerate(some):
        driver.submit(uid, ids, 6 + uid)
        for _ in range(uid % 4):
            driver.step()
    driver.submit(90, random_prompt(10, 70), 20)
    driver.step()
    driver.abort(90)
    driver.run()
    driver.assert_parity(*range(len(some)))
    driver.assert_every_page()


def test_a_failed_request_leaves_no_state():
    driver = drive(max_extend_tokens=25)
    states, ids = states_of(driver), random_prompt(3, 60)
    driver.submit(0, ids)
    driver.step()
    states.recurrent[:, : states.zeros] = torch.nan
    driver.run()
    assert driver.ended[0].finish_reason == "error"
    driver.assert_clean()
    assert states.num_free == states.num_snapshots
    assert answer(driver, 1, ids) == 60
    driver.assert_parity(1)


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True])
def test_what_an_answer_ended_with_is_not_taken_for_its_state(overlap):
    """In flight, a row may be a token past what the host has read."""
    ids = random_prompt(4, 30)
    expected = solo(FOLDER, ids, 12).ids
    driver = drive(overlap=overlap, ends=[expected[9]])
    at = expected.index(expected[9])
    driver.submit(0, ids, 30, ignore_eos=False)
    driver.run()
    assert driver.answers[0] == expected[: at + 1]
    turn = ids + driver.answers[0] + random_prompt(5, 10)
    assert answer(driver, 1, turn) == len(turn) - 29
    driver.assert_parity(1)
    driver.assert_every_page()


def test_the_books_show_a_lost_snapshot():
    driver = drive()
    answer(driver, 0, PROMPTS[5])
    cache = driver.scheduler.cache_manager.prefix_cache
    assert isinstance(cache, HybridRadixCache)
    snapshot = states_of(driver).take(3)
    with pytest.raises(RuntimeError, match="snapshots do not add up"):
        cache.check_integrity()
    states_of(driver).release(snapshot)
    cache.check_integrity()
    (kept,) = cache._snapshots.values()
    kept.length += 1
    with pytest.raises(RuntimeError, match="stands where"):
        cache.check_integrity()


def test_models_without_states_have_the_plain_cache():
    driver = Driver(model_path("qwen3-tiny"))
    cache = driver.scheduler.cache_manager.prefix_cache
    assert type(cache) is RadixPrefixCache


def test_a_chunk_is_cut_where_states_are_saved():
    driver = drive(page_size=4, max_extend_tokens=50)
    base = random_prompt(6, 40)
    answer(driver, 0, base)
    scheduler, states = driver.scheduler, states_of(driver)
    driver.submit(1, base[:30] + PROMPTS[3], 3)
    with torch.inference_mode():
        scheduler._process_messages(blocking=False)
        batch = scheduler.prefill_manager.schedule_next_batch(50)
    (req,) = batch.reqs
    row = req.table_idx
    waves = cut_into_waves(batch.reqs, states, 4, CPU)
    assert isinstance(req.cache_handle, HybridHandle)
    branch, last = (one.slot for one in req.cache_handle.saved)
    cut = [tuple(segment) for wave in waves for segment in wave.segments]
    assert cut == [
        (0, 28, states.zeros, row, branch),
        (28, 44, row, row, last),
        (44, 46, row, row, NOWHERE),
    ]
    assert [wave.longest for wave in waves] == [28, 16, 2]


# -- memory, configurations, checkpoints ---------------------------------------


def config_of(name: str) -> ModelConfig:
    return ModelConfig.from_hf(cached_load_hf_config(str(model_path(name))))


def test_the_budget_counts_states(monkeypatch):
    from minisgl.engine import Engine

    config = config_of("qwen3.5-tiny")
    size = slot_bytes(config.linear, torch.float32)
    assert size == 4 * 2 * (4 * 64 * 64 + 3 * 512)
    found = {}
    for free in (9 << 20, 14 << 20):
        monkeypatch.setattr(Engine, "_free_memory", lambda self, f=free: f)
        engine = drive(pages=None, max_running_req=8)
        engine = engine.scheduler.engine
        states = engine.attn_backend.linear.states
        assert states.nbytes == size * (10 + states.num_snapshots)
        kv = engine.ctx.kv_cache
        assert kv.num_layers == 2
        used = states.nbytes + 2 * kv.num_layers * kv.k_cache(0).nbytes
        weights = sum(w.nbytes for w in engine.model.state_dict().values())
        assert used + weights <= free
        found[free] = states.num_snapshots
    assert 0 < found[9 << 20] < found[14 << 20] == 8
    monkeypatch.setattr(Engine, "_free_memory", lambda self: 5 << 20)
    with pytest.raises(
        RuntimeError, match=r"8 requests.*lower max_running_req"
    ):
        drive(pages=None, max_running_req=8)


def test_layers_of_each_kind_are_counted():
    config = config_of("qwen3.5-tiny")
    assert (config.num_layers, config.num_kv_layers) == (4, 2)
    assert [config.linear.layer(i) for i in range(4)] == [0, 0, 1, 1]
    assert config_of("qwen3-tiny").linear is None
    moe = config_of(MOE)
    assert (moe.shared_expert_size, moe.norm_topk_prob) == (96, True)


def changed(folder, **changes):
    """The tiny model under another configuration."""
    shutil.copytree(model_path("qwen3.5-tiny"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.mark.parametrize(
    "changes, words",
    [
        (
            {"layer_types": ["linear_attention", "sliding_attention"] * 2},
            "type",
        ),
        ({"linear_num_value_heads": 3}, "3, which is no multiple of the 2"),
        ({"layer_types": ["full_attention"] * 4}, "linear_attention"),
    ],
)
def test_what_is_not_supported_is_said(changes, words, tmp_path):
    folder = changed(tmp_path / "m", **changes)
    with pytest.raises(ValueError, match=words):
        drive(folder)


def test_heads_that_cannot_be_cut_are_refused():
    config = config_of("qwen3.5-tiny")
    with pytest.raises(ValueError, match=r"2 key heads of linear layers .* 4"):
        local_config(replace(config, num_qo_heads=8), 4)


def test_the_shapes_are_as_large_as_their_names():
    sizes = {}
    for name in ("qwen3.5-0.8b", "qwen3.5-35b-a3b"):
        with shape_folder(name) as folder, torch.device("meta"):
            config = cached_load_hf_config(str(folder))
            model = create_model(ModelConfig.from_hf(config))
        weights = model.state_dict().values()
        sizes[name] = sum(weight.numel() for weight in weights)
    assert sizes == {
        "qwen3.5-0.8b": 752_393_024,
        "qwen3.5-35b-a3b": 34_660_610_688,
    }


@pytest.mark.parametrize("hub", [False, True])
def test_two_ranks_read_every_weight_once(hub, rank, tmp_path):
    folder = model_path(MOE)
    if hub:
        folder = as_on_the_hub(MOE, tmp_path / "hub")
    whole = dict(load_weight(str(folder), CPU))
    halves = []
    for number in (0, 1):
        rank(number, 2)
        halves.append(dict(load_weight(str(folder), CPU)))
    for key, full in whole.items():
        one, other = (half[key] for half in halves)
        if one.shape == full.shape:
            assert torch.equal(one, full) and torch.equal(other, full)
            continue
        cut = [a != b for a, b in zip(one.shape, full.shape, strict=True)]
        dim = cut.index(True)
        # Whatever the order: every row of the whole is in one of the halves.
        joined = torch.cat([one, other], dim).transpose(0, dim)
        rows = {row.numpy().tobytes() for row in joined.contiguous()}
        assert rows == {
            row.numpy().tobytes() for row in full.transpose(0, dim).contiguous()
        }, key
        assert cut.count(True) == 1
    local = halves[1]["model.layers.0.linear_attn.in_proj.weight"]
    stored = load_file(folder / "model.safetensors")
    (name,) = [
        n
        for n in stored
        if n.endswith("layers.0.linear_attn.in_proj_qkv.weight")
    ]
    q, k, v = stored[name].split([64, 64, 128])
    assert torch.equal(local[:128], torch.cat([q[32:], k[32:], v[64:]]))
    stack = halves[1]["model.layers.0.mlp.experts.gate_up_proj"]
    full = whole["model.layers.0.mlp.experts.gate_up_proj"]
    assert torch.equal(stack, torch.cat([full[:, 32:64], full[:, 96:]], 1))


def as_on_the_hub(name: str, folder):
    """The checkpoint as the part of one that also sees, experts stacked."""
    shutil.copytree(model_path(name), folder)
    text = json.loads((folder / "config.json").read_text())
    dtype, kind = text.pop("dtype"), text["model_type"].removesuffix("_text")
    (architecture,) = text.pop("architectures")
    whole = {
        "architectures": [
            architecture.replace("CausalLM", "ConditionalGeneration")
        ],
        "model_type": kind,
        "dtype": dtype,
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "vision_config": {"depth": 1, "model_type": f"{kind}_vision"},
    }
    (folder / "config.json").write_text(json.dumps(whole))
    stored = load_file(folder / "model.safetensors")
    tensors = {"mtp.norm.weight": torch.zeros(4)}
    tensors["model.visual.patch_embed.proj.weight"] = torch.zeros(4, 4)
    for key, tensor in stored.items():
        key = key.replace("model.", "model.language_model.", 1)
        tensors[key] = tensor
    save_file(stack_experts(tensors), folder / "model.safetensors")
    return folder


def stack_experts(tensors):
    """Experts of a layer in one tensor, gate above up."""
    experts = {k: t for k, t in tensors.items() if ".experts." in k}
    found = {k: t for k, t in tensors.items() if k not in experts}
    for layer in {k.split(".experts.")[0] for k in experts}:
        parts = {
            kind: torch.stack(
                [
                    experts[f"{layer}.experts.{i}.{kind}.weight"]
                    for i in range(8)
                ]
            )
            for kind in ("gate_proj", "up_proj", "down_proj")
        }
        both = torch.cat([parts["gate_proj"], parts["up_proj"]], 1)
        found[f"{layer}.experts.gate_up_proj"] = both
        found[f"{layer}.experts.down_proj"] = parts["down_proj"].contiguous()
    return found


@pytest.mark.parity
@pytest.mark.parametrize("name", ["qwen3.5-tiny", MOE])
def test_the_text_part_of_a_model_that_sees(name, tmp_path, caplog):
    folder = as_on_the_hub(name, tmp_path / "hub")
    driver = drive(folder, dtype="auto")
    said = caplog.text
    assert driver.scheduler.engine.dtype == torch.float32
    assert "vision (1)" in said and "draft layers (1)" in said
    assert "not used" not in said
    driver.submit(0, prompts(name)[4], LENGTH)
    answers = driver.run()
    assert answers[0] == reference(name, prompts(name)[4], 64).ids[:LENGTH]
    jobs = [Job([(prompts(name)[4], {"max_tokens": LENGTH})])]
    for rank in run_ranks(folder, 2, jobs, tmp_path / "out"):
        assert rank["jobs"][0]["answers"] == [answers[0]]
