"""A hierarchical cache under a scheduler: what comes back is what was computed."""

import random

import numpy as np
import pytest
import torch

from minisgl.core import SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.engine import EngineConfig
from minisgl.kvcache import hiradix_cache, tiered_pool
from minisgl.kvcache import transfer as transfer_file
from minisgl.kvcache.transfer import Transfers
from minisgl.llm import LLM
from minisgl.scheduler.speculative import SpeculativeScheduler
from minisgl.server.args import parse_args
from minisgl.server.metrics import Metrics
from tests import driver as driver_file
from tests.driver import Driver
from tests.fakes.install import stand_ins
from tests.late_device import LateEvent, LateStream
from tests.parity import RandomParity, model_under_test, reference
from tests.radix import tensor
from tests.tiers import TieredDriver, family, gib
from tests.tp import Job, run_ranks
from tools.models import model_path

TINY = model_path("qwen3-tiny")
PAGES = pytest.mark.parametrize("page", [1, 16])
POLICIES = pytest.mark.parametrize("policy", ["write_through", "write_back"])


def ids(seed, length):
    return np.random.default_rng([28, seed]).integers(0, 500, length).tolist()


def start(host_tokens=1024, page=16, tokens=96, **settings):
    """A driver whose device holds `tokens` tokens."""
    return TieredDriver(
        TINY,
        host_tokens=host_tokens,
        page_size=page,
        pages=tokens // page,
        max_seq_len_override=128,
        **settings,
    )


def ask(driver, uid, prompt, length=8, **params):
    """Answer one request; returns how many prompt tokens were computed."""
    driver.submit(uid, prompt, length, **params)
    driver.run()
    steps = [s.tokens[uid] for s in driver.prefills() if uid in s.tokens]
    return sum(steps)


# -- the same tokens -----------------------------------------------------------


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
@PAGES
@POLICIES
def test_a_prefix_that_left_is_loaded_and_not_computed(policy, page, overlap):
    driver = start(page=page, host_cache_policy=policy, overlap=overlap)
    first, second = ids(0, 70), ids(1, 70)
    assert ask(driver, 0, first) == 70
    assert ask(driver, 1, second) == 70
    assert driver.cache.match_prefix(tensor(first)).cuda_handle.cached_len < 70
    kept = 69 // page * page
    for uid, prompt in enumerate((first, second, first), start=2):
        assert ask(driver, uid, prompt) == 70 - kept
        assert driver.answers[uid] == driver.answers[uid % 2]
    driver.assert_parity(length=8)
    driver.assert_every_page()


@pytest.mark.parity
def test_both_tiers_serve_one_prompt(monkeypatch):
    """A beginning that is on the device, its end on the host, and new tokens."""
    monkeypatch.setattr(hiradix_cache, "_AT_ONCE", 0)
    driver = start(page=16, tokens=112)
    long = ids(2, 64)
    ask(driver, 0, long, 1)
    ask(driver, 1, ids(3, 64), 1)
    match = driver.cache.match_prefix(tensor(long))
    assert (match.cuda_handle.cached_len, match.host_handle.cached_len) == (
        48,
        64,
    )
    assert ask(driver, 2, [*long, *ids(4, 9)]) == 9
    assert driver.cache.loaded_tokens == 16
    driver.assert_parity()
    driver.assert_every_page()


@pytest.mark.parity
@POLICIES
def test_two_requests_of_one_batch_share_what_comes(policy):
    driver = start(host_cache_policy=policy, tokens=160)
    shared = ids(5, 64)
    ask(driver, 0, shared)
    ask(driver, 1, ids(6, 110))
    driver.submit(2, [*shared, 7, 8])
    driver.submit(3, [*shared, 9])
    driver.run()
    assert driver.steps[-8].tokens == {2: 2, 3: 1}
    assert driver.cache.loaded_tokens == 64
    driver.assert_parity()
    driver.assert_every_page()


def test_keys_of_eight_bits_come_back_as_they_were(monkeypatch):
    monkeypatch.setattr(TieredDriver, "audit", lambda self: None)
    driver = start(kv_cache_dtype="fp8_e4m3")
    for uid, seed in enumerate((0, 0, 1, 0)):
        ask(driver, uid, ids(seed, 70))
    assert driver.cache.loaded_tokens == 64
    assert driver.answers[3] == driver.answers[1], "as from the device"
    driver.assert_every_page()


@pytest.mark.parity
def test_a_chunked_prompt_loads_once():
    driver = start(max_extend_tokens=8, overlap=True)
    prompt = ids(7, 48)
    ask(driver, 0, prompt)
    ask(driver, 1, ids(8, 80))
    assert ask(driver, 2, [*prompt, *ids(9, 20)]) == 20
    assert [s.tokens[2] for s in driver.prefills() if 2 in s.tokens] == [
        8,
        8,
        4,
    ]
    assert driver.cache.loaded_tokens == 48
    driver.assert_parity()
    driver.assert_every_page()


def workload(seed, recorded=None, **more):
    """Random requests and aborts over a device that is far too small."""
    rng = random.Random(seed)
    page = rng.choice([1, 4, 16])
    driver = start(
        host_tokens=rng.choice([32, 160, 1000]),
        page=page,
        tokens=rng.choice([96, 160]),
        host_cache_policy=rng.choice(["write_through", "write_back"]),
        overlap=rng.random() < 0.7,
        max_running_req=rng.randint(1, 5),
        max_extend_tokens=rng.choice([5, 16, 40, 8192]),
        cuda_graph_bs=recorded or ([1, 2, 4] if rng.random() < 0.4 else None),
        **more,
    )
    prompts = family(seed % 4, 24, 64)
    for uid in range(24):
        driver.submit(uid, rng.choice(prompts), rng.randint(1, 12))
        while rng.random() < 0.6:
            driver.step()
        if rng.random() < 0.15:
            driver.abort(rng.randrange(uid + 1))
    driver.run()
    return driver


@pytest.mark.parity
@pytest.mark.parametrize("group", range(4))
def test_random_workloads_answer_as_if_there_were_room(monkeypatch, group):
    near, loaded = RandomParity(), 0
    for seed in range(group, 16, 4):
        at_once = random.Random(seed).choice([0, 8, 256])
        monkeypatch.setattr(hiradix_cache, "_AT_ONCE", at_once)
        driver = workload(seed)
        driver.assert_parity(near=near)
        loaded += driver.cache.loaded_tokens
        driver.assert_every_page()
    near.finish()
    assert loaded > 100


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(3))
def test_guessing_and_two_tiers_go_together(monkeypatch, seed):
    monkeypatch.setattr(driver_file, "Scheduler", SpeculativeScheduler)
    driver = workload(seed, speculative="ngram")
    near = RandomParity()
    driver.assert_parity(near=near)
    near.finish()
    driver.assert_every_page()


@pytest.mark.parity
@POLICIES
@pytest.mark.parametrize("at", range(6))
def test_an_abort_while_pages_come_loses_none(policy, at):
    driver = start(host_cache_policy=policy, overlap=True, max_extend_tokens=8)
    prompt = ids(10, 48)
    ask(driver, 0, prompt)
    ask(driver, 1, ids(11, 80))
    driver.submit(2, [*prompt, *ids(12, 20)])
    for _ in range(at):
        driver.step()
    driver.abort(2)
    driver.run()
    assert driver.cache.loaded_tokens == (48 if at else 0)
    assert ask(driver, 3, [*prompt, *ids(12, 20)]) <= 20
    driver.assert_parity(3, length=8)
    driver.assert_every_page()


@pytest.mark.parity
def test_the_model_under_test():
    folder = model_under_test("llama3-tiny")
    driver = Driver(folder, page_size=16, pages=8, host_cache_gb=0.01)
    prompts = [ids(20 + i, 65) for i in range(3)]
    for uid in range(9):
        driver.submit(uid, prompts[uid % 3], 6)
        driver.run()
    assert driver.scheduler.cache_manager.prefix_cache.loaded_tokens == 6 * 64
    driver.assert_parity(length=6)
    driver.assert_every_page()


@pytest.mark.parity
def test_two_ranks_decide_alike(tmp_path):
    prompts = [ids(30 + i, 50 + i) for i in range(4)]
    job = Job(
        [(prompts[i % 4], {"max_tokens": 6}) for i in range(12)],
        at=[5 * i for i in range(12)],
        abort_at={5: 27},
    )
    notes = run_ranks(
        TINY,
        2,
        [job],
        tmp_path,
        page_size=4,
        num_page_override=32,
        max_seq_len_override=128,
        host_cache_gb=gib(400),
    )
    first, second = (note["jobs"][0] for note in notes)
    assert first == second
    assert [note["loaded"] for note in notes] == [notes[0]["loaded"]] * 2
    assert notes[0]["loaded"] > 100
    for i, answer in enumerate(first["answers"]):
        expected = reference(TINY, prompts[i % 4], 64).ids
        assert answer == expected[: len(answer)]
        assert len(answer) == 6 or i == 5


# -- streams -------------------------------------------------------------------


@pytest.fixture
def late(monkeypatch):
    """Copies are made as late as an event allows, or when memory is full of them."""
    stream = LateStream()
    for name in ("_write_layer", "_read_layer"):
        copy = getattr(Transfers, name)

        def later(self, layer, chunks, copy=copy):
            # What a real stream reads is what is there when it comes to it.
            stream.todo.append(lambda: copy(self, layer, chunks))

        monkeypatch.setattr(Transfers, name, later)
    for file in (transfer_file, hiradix_cache):
        monkeypatch.setattr(
            file, "wait_event", lambda event: event.synchronize()
        )
    monkeypatch.setattr(
        transfer_file, "new_event", lambda device: LateEvent(stream)
    )
    # The copies are not yet what they will be.
    monkeypatch.setattr(TieredDriver, "audit", lambda self: None)
    return stream


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(6))
def test_copies_may_be_as_late_as_their_events(late, monkeypatch, seed):
    """Nothing is read before it came, nothing written before it was copied."""
    monkeypatch.setattr(hiradix_cache, "_AT_ONCE", 8)
    driver = workload(100 + seed)
    near = RandomParity()
    driver.assert_parity(near=near)
    near.finish()
    assert driver.cache.loaded_tokens > 0
    driver.assert_clean()


@pytest.mark.parity
def test_recorded_prompts_find_what_came_from_the_host(late, monkeypatch):
    """FlashInfer's prefill batches are replayed, too."""
    monkeypatch.setattr(hiradix_cache, "_AT_ONCE", 8)
    near, loaded = RandomParity(), 0
    with stand_ins():
        for seed in (100, 103):
            driver = workload(seed, attention_backend="fi", recorded=[1, 4])
            graphs = driver.scheduler.engine.graph_runner.prefill_graphs
            assert graphs is not None and len(graphs) > 0
            driver.assert_parity(near=near)
            loaded += driver.cache.loaded_tokens
            driver.assert_clean()
    near.finish()
    assert loaded > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_answers_are_the_same(monkeypatch):
    """An audit waits for the device; without one the streams run as they do."""
    monkeypatch.setattr(hiradix_cache, "_AT_ONCE", 16)
    near, loaded = RandomParity(), 0
    for seed in range(8):
        if seed == 4:
            monkeypatch.setattr(TieredDriver, "audit", lambda self: None)
        driver = workload(seed, device="cuda", attention_backend="torch")
        driver.assert_parity(near=near)
        loaded += driver.cache.loaded_tokens
        driver.assert_every_page()
    near.finish()
    assert loaded > 100


def test_a_layer_waits_for_its_own_pages_only(late):
    driver = start(overlap=False)
    prompt = ids(0, 70)
    ask(driver, 0, prompt)
    ask(driver, 1, ids(1, 70))
    late.synchronize()
    left = []
    pool = driver.scheduler.engine.ctx.kv_cache
    arrive = pool._transfers.arrive

    def noted(layer):
        arrive(layer)
        left.append((layer, len(late.todo)))

    pool._transfers.arrive = noted
    driver.submit(2, prompt, 1)
    driver.step()
    # A copy and an event for each of three layers.
    assert left == [(0, 4), (0, 4), (1, 2), (1, 2), (2, 0), (2, 0)]


# -- settings, and what a user sees --------------------------------------------


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"host_cache_gb": -1.0}, "host_cache_gb must be at least 0"),
        ({"host_cache_gb": float("nan")}, "host_cache_gb must be at least 0"),
        ({"host_cache_policy": "never"}, "'never' is not one of write_through"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(str(TINY), DistributedInfo(0, 1), "float32", **settings)


def test_the_command_line_knows_both(capsys):
    words = ["--model", "x", "--host-cache-gb", "2.5"]
    args, _ = parse_args([*words, "--host-cache-policy", "write_back"])
    assert (args.host_cache_gb, args.host_cache_policy) == (2.5, "write_back")
    assert parse_args(words[:2])[0].host_cache_gb == 0
    with pytest.raises(SystemExit):
        parse_args([*words, "--host-cache-policy", "sometimes"])
    assert "write_through, write_back" in capsys.readouterr().err


def test_a_hybrid_model_is_refused():
    with pytest.raises(ValueError, match="host_cache_gb has to be 0"):
        Driver(model_path("qwen3.5-tiny"), host_cache_gb=0.1)


def test_without_memory_nothing_changes():
    driver = Driver(TINY, pages=64)
    cache = driver.scheduler.cache_manager.prefix_cache
    assert type(cache).__name__ == "RadixPrefixCache"
    assert type(driver.scheduler.engine.ctx.kv_cache).__name__ == "MHAKVCache"


def test_memory_is_taken_by_the_cache_that_uses_it(monkeypatch):
    made = []
    buffer = tiered_pool.host_buffer
    monkeypatch.setattr(
        tiered_pool, "host_buffer", lambda *a: made.append(a) or buffer(*a)
    )
    Driver(TINY, pages=64, host_cache_gb=0.01, cache_type="naive")
    assert made == []
    Driver(TINY, pages=64, host_cache_gb=0.01)
    assert len(made) == 1


def test_metrics_tell_of_the_host():
    driver = start()
    for uid in range(3):
        ask(driver, uid, ids(uid % 2, 70))
    numbers = driver.scheduler.replies.status(7, driver.scheduler).numbers
    assert (numbers["host_pages"], numbers["loaded_tokens"]) == (8, 64)
    text = Metrics().show(numbers).decode()
    assert "\nminisgl_host_pages 8.0\n" in text
    assert "\nminisgl_loaded_tokens_total 64.0\n" in text
    scheduler = Driver(TINY, pages=64).scheduler
    plain = scheduler.replies.status(7, scheduler).numbers
    assert "host" not in Metrics().show(plain).decode()


def test_c05_cached_tokens_count_what_came_from_the_host():
    seen = []

    class Noting(LLM):
        def offline_send_result(self, reply):
            seen.extend(reply)
            super().offline_send_result(reply)

    llm = Noting(
        str(TINY),
        "float32",
        device="cpu",
        page_size=16,
        num_page_override=6,
        host_cache_gb=0.01,
    )
    params = SamplingParams(max_tokens=1)
    for seed in (0, 1, 0):
        llm.generate([ids(seed, 70)], params)
    assert [msg.cached_tokens for msg in seen] == [0, 0, 64]
    # Both tiers are forgotten together.
    llm._reset()
    llm.generate([ids(0, 70)], params)
    assert seen[-1].cached_tokens == 0
