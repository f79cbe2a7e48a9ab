"""The engine: parity in every batch, one failing row, settings, memory."""

import functools
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from minisgl.core import SamplingParams, set_global_ctx
from minisgl.distributed import DistributedInfo
from minisgl.engine import FAILED_TOKEN, Engine, EngineConfig
from minisgl.layers.packed import can_pack, pack_weight, packed_linear
from minisgl.utils import align_ceil, load_eos_token_ids
from minisgl.utils.device import (
    new_event,
    new_stream,
    to_device,
    to_host,
    use_stream,
)
from tests.handmade import make_batch, make_req
from tests.parity import (
    assert_parity,
    first_difference,
    model_under_test,
    prompts,
    reference,
)
from tools.models import model_path
from tools.zoo.places import models_dir

FAMILIES = ["qwen3-tiny", "qwen2-tiny", "llama3-tiny", "mistral-tiny"]
POOL = 1024


def config_of(folder, page_size=4, **changes):
    given = {
        "dtype": "float32",
        "max_running_req": 8,
        "page_size": page_size,
        "num_page_override": POOL // page_size,
        "device": "cpu",
    }
    one = DistributedInfo(0, 1)
    return EngineConfig(str(folder), one, **given | changes)


@functools.cache
def load(folder, page_size=4, **changes):
    return Engine(config_of(folder, page_size, **changes))


def lend_pages(engine, reqs, scattered=True):
    """Give each request pages for its whole answer, from all over the pool."""
    size = engine.ctx.page_size
    free = torch.arange(engine.num_pages)
    if scattered:
        rng = torch.Generator().manual_seed(len(reqs))
        free = torch.randperm(engine.num_pages, generator=rng)
    for req in reqs:
        needed = -(-req.max_device_len // size)
        pages, free = free[:needed], free[needed:]
        assert len(pages) == needed, "the pool of this test is too small"
        slots = pages.unsqueeze(1) * size + torch.arange(size)
        row = engine.page_table[req.table_idx]
        row[: slots.numel()] = slots.flatten()


def step(engine, reqs, phase):
    """One forward; every request gets its token unless it failed."""
    set_global_ctx(engine.ctx)
    batch = make_batch(reqs, phase, engine.ctx)
    engine.attn_backend.prepare_metadata(batch)
    output = engine.forward_batch(batch, engine.sampler.prepare(batch))
    output.copy_done_event.synchronize()
    tokens = output.next_tokens_cpu
    for req, token in zip(reqs, tokens, strict=True):
        if token != FAILED_TOKEN:
            req.append_host(token.view(1))
    return output


def running(reqs):
    """Those that want another token and did not fail at the last."""
    return [
        r for r in reqs if r.can_decode and len(r.input_ids) == r.device_len
    ]


def answers(reqs, asked):
    return [
        req.input_ids[len(prompt) :].tolist()
        for req, prompt in zip(reqs, asked, strict=True)
    ]


def make_reqs(asked, params):
    if isinstance(params, SamplingParams):
        params = [params] * len(asked)
    return [
        make_req(ids, row, p.max_tokens, p)
        for row, (ids, p) in enumerate(zip(asked, params, strict=True))
    ]


def generate(engine, asked, params, scattered=True):
    """Prefill all prompts in one batch, then decode until nobody runs."""
    reqs = make_reqs(asked, params)
    lend_pages(engine, reqs, scattered)
    step(engine, reqs, "prefill")
    while left := running(reqs):
        step(engine, left, "decode")
    return answers(reqs, asked)


def greedy(n=64):
    return SamplingParams(max_tokens=n)


def check_parity(engine, folder, asked, n=64):
    got = generate(engine, asked, greedy(n))
    for ids, prompt in zip(got, asked, strict=True):
        assert_parity(ids, reference(folder, prompt, n))


UNEVEN = {1: [4], 2: [6, 0], 3: [2, 7, 1], 8: [5, 0, 7, 3, 1, 6, 2, 4]}
"""By batch size: which of the fixed prompts, in an order that is not theirs."""


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("model", FAMILIES)
def test_c15_parity_in_batches_of_1_2_3_and_8(model, page_size):
    folder = model_path(model)
    engine, known = load(folder, page_size), prompts(model)
    for chosen in UNEVEN.values():
        check_parity(engine, folder, [known[i] for i in chosen])


@pytest.mark.parity
def test_c15_parity_of_the_model_under_test():
    folder = model_under_test("qwen3-tiny")
    check_parity(load(folder), folder, prompts(folder)[:3], 24)


@pytest.mark.parity
def test_c15_parity_of_smollm2_whose_stated_dtype_is_not_the_stored_one():
    if not (models_dir() / "smollm2-135m" / "config.json").is_file():
        pytest.skip(
            "no smollm2-135m: python tools/models.py fetch smollm2-135m"
        )
    folder = model_path("smollm2-135m")
    engine = Engine(config_of(folder, dtype="auto"))
    assert engine.dtype == engine.ctx.kv_cache.dtype == torch.float32
    check_parity(engine, folder, prompts("smollm2-135m")[:2], 12)


@pytest.mark.parity
def test_c15_parity_of_requests_that_come_and_go():
    engine, known = load(model_path("qwen3-tiny")), prompts("qwen3-tiny")[:5]
    lengths = [64, 12, 40, 1, 30]
    reqs = make_reqs(known, [greedy(n) for n in lengths])
    lend_pages(engine, reqs)
    arrivals = {0: reqs[:2], 5: reqs[2:3], 6: reqs[3:]}
    sizes, here = [], []
    for now in range(64):
        if now in arrivals:
            here += arrivals[now]
            step(engine, arrivals[now], "prefill")
        if left := running(here):
            sizes.append(len(left))
            step(engine, left, "decode")
    assert sorted(set(sizes)) == [1, 2, 3, 4]
    for ids, prompt, n in zip(
        answers(reqs, known), known, lengths, strict=True
    ):
        assert_parity(ids, reference("qwen3-tiny", prompt, n))


@pytest.mark.parity
def test_parity_of_two_engines_that_take_turns():
    names, pairs = ["qwen3-tiny", "llama3-tiny"], []
    for name, size in zip(names, [4, 16], strict=True):
        engine, asked = load(model_path(name), size), prompts(name)[:2]
        reqs = make_reqs(asked, greedy(16))
        lend_pages(engine, reqs)
        pairs.append((engine, reqs, asked))
    for now in range(16):
        phase = "decode" if now else "prefill"
        batches = [make_batch(reqs, phase, e.ctx) for e, reqs, _ in pairs]
        for (engine, *_), batch in zip(pairs, batches, strict=True):
            engine.attn_backend.prepare_metadata(batch)
        for (engine, reqs, _), batch in zip(pairs, batches, strict=True):
            args = engine.sampler.prepare(batch)
            tokens = engine.forward_batch(batch, args).next_tokens_cpu
            for req, token in zip(reqs, tokens, strict=True):
                req.append_host(token.view(1))
    for name, (_, reqs, asked) in zip(names, pairs, strict=True):
        for ids, prompt in zip(answers(reqs, asked), asked, strict=True):
            assert_parity(ids, reference(name, prompt, 16))


def test_c15_bfloat16_differs_only_where_two_tokens_are_close():
    engine = load(model_path("qwen3-tiny"), dtype="bfloat16")
    assert engine.dtype == engine.ctx.kv_cache.dtype == torch.bfloat16
    asked = prompts("qwen3-tiny")[:4]
    for ids, prompt in zip(
        generate(engine, asked, greedy()), asked, strict=True
    ):
        expected = reference("qwen3-tiny", prompt, 64)
        at = first_difference(ids, expected.ids)
        assert at is None or expected.gaps[at] < 0.1  # of the logits' std


def drawn(seed, temperature=1.0, n=20):
    return SamplingParams(temperature, max_tokens=n, seed=seed)


def test_c13_a_seeded_answer_does_not_depend_on_its_neighbours():
    engine, known = load(model_path("qwen3-tiny")), prompts("qwen3-tiny")
    alone = generate(engine, known[2:3], drawn(42))
    assert alone == generate(engine, known[2:3], drawn(42))
    others = [
        drawn(None),
        drawn(7),
        greedy(9),
        drawn(42),
        drawn(3),
        drawn(None),
    ]
    asked = [*known[3:6], known[2], *known[6:8], known[0]]
    together = generate(engine, asked, [*others[:3], drawn(42), *others[3:]])
    assert together[3] == alone[0]


def test_c13_other_seeds_and_no_seed_give_other_answers():
    engine, known = load(model_path("qwen3-tiny")), prompts("qwen3-tiny")
    for first, second in [(42, 43), (None, None)]:
        pair = [drawn(first, 3.0), drawn(second, 3.0)]
        one, two = generate(engine, [known[2]] * 2, pair)
        assert one != two
    assert generate(engine, known[:3], drawn(42)) != generate(
        engine, known[:3], drawn(43)
    )


def poison(uid, length):
    """A processor: NaN for request `uid` once it has `length` tokens."""

    def look(batch):
        rows = [(req.uid, req.device_len) for req in batch.reqs]
        if (uid, length) not in rows:
            return None

        def edit(logits):
            logits[rows.index((uid, length)), 17] = torch.nan
            return logits

        return edit

    return look


@pytest.mark.parity
@pytest.mark.parametrize("after", [0, 5])
def test_c14_nan_logits_end_one_request(monkeypatch, after):
    engine, asked = load(model_path("qwen3-tiny")), prompts("qwen3-tiny")[2:5]
    nan = poison(1, len(asked[1]) + after)
    monkeypatch.setattr(engine.sampler, "processors", [nan])
    got = generate(engine, asked, greedy())
    for row, length in enumerate([64, after, 64]):
        expected = reference("qwen3-tiny", asked[row], 64)
        assert got[row] == expected.ids[:length]


@pytest.mark.parity
@pytest.mark.parametrize("scattered", [True, False])
def test_c14_nan_keys_and_values_in_the_pool_end_one_request(scattered):
    engine = Engine(config_of(model_path("llama3-tiny")))
    good = [prompts("llama3-tiny")[i] for i in (2, 5, 4)]
    expected = [reference("llama3-tiny", prompt, 64) for prompt in good]
    seen = {token for found in expected for token in found.ids}
    broken = next(i for i in range(511, 0, -1) if i not in seen.union(*good))
    engine.model.model.embed_tokens.weight[broken] = torch.nan
    asked = [[broken] * 9, *good]
    got = generate(engine, asked, greedy(), scattered)
    assert got[0] == []
    assert engine.ctx.kv_cache.k_cache(0).isnan().any()
    for ids, found in zip(got[1:], expected, strict=True):
        assert_parity(ids, found)


def test_c14_a_failed_row_has_a_token_on_the_device_for_one_more_step(
    monkeypatch,
):
    engine, asked = load(model_path("qwen3-tiny")), prompts("qwen3-tiny")[2:5]
    nan = poison(1, len(asked[1]))
    monkeypatch.setattr(engine.sampler, "processors", [nan])
    reqs = make_reqs(asked, greedy(4))
    lend_pages(engine, reqs)
    output = step(engine, reqs, "prefill")
    assert output.next_tokens_cpu[1] == FAILED_TOKEN
    assert output.next_tokens_gpu.dtype == torch.int32
    device = output.next_tokens_gpu.tolist()
    assert device[1] in range(512) and device[::2] == [
        reference("qwen3-tiny", asked[i], 64).ids[0] for i in (0, 2)
    ]
    reqs[1].append_host(output.next_tokens_gpu[1:2])
    again = step(engine, reqs, "decode").next_tokens_cpu.tolist()
    assert again[::2] == [
        reference("qwen3-tiny", asked[i], 64).ids[1] for i in (0, 2)
    ]


def test_token_zero_is_a_token(monkeypatch):
    def prefer_zero(batch):
        return lambda logits: logits.index_fill(1, torch.tensor([0]), 1e9)

    engine = load(model_path("qwen3-tiny"))
    monkeypatch.setattr(engine.sampler, "processors", [prefer_zero])
    reqs = make_reqs([[5, 6, 7]], greedy(2))
    lend_pages(engine, reqs)
    output = step(engine, reqs, "prefill")
    assert int(output.next_tokens_gpu) == int(output.next_tokens_cpu) == 0


def test_a_step_moves_the_counters_of_its_requests_on():
    engine = load(model_path("qwen3-tiny"))
    reqs = make_reqs([[5, 6, 7], [8]], greedy(2))
    lend_pages(engine, reqs)
    for phase, cached in [("prefill", [3, 1]), ("decode", [4, 2])]:
        output = step(engine, reqs, phase)
        assert [req.cached_len for req in reqs] == cached
        assert [req.device_len for req in reqs] == [n + 1 for n in cached]
        assert output.next_tokens_cpu.shape == (2,)
    assert running(reqs) == []


BAD = [
    ({"device": "tpu"}, "device 'tpu' is not supported; use auto, cpu or cuda"),
    ({"dtype": "int3"}, "dtype 'int3' is not supported; use one of auto, .*"),
    (
        {"attention_backend": "magic"},
        "attention backend 'magic' is not supported; use one of .*torch.*",
    ),
    ({"num_page_override": 0}, "num_page_override must be at least 1, got 0"),
    ({"max_seq_len_override": 0}, "max_seq_len_override must be .*, got 0"),
    ({"max_running_req": 0}, "max_running_req must be at least 1, got 0"),
    ({"page_size": -1}, "page_size must be at least 1, got -1"),
    ({"memory_ratio": 0.0}, r"memory_ratio must be in \(0, 1\], got 0.0"),
    ({"memory_ratio": 1.1}, r"memory_ratio must be in \(0, 1\], got 1.1"),
]


@pytest.mark.parametrize(("setting", "message"), BAD)
def test_a_bad_setting_is_one_line(setting, message):
    given = {"num_page_override": None, "page_size": 4} | setting
    with pytest.raises(ValueError, match=f"^{message}$"):
        Engine(config_of(model_path("qwen3-tiny"), **given))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu_is_one_line():
    with pytest.raises(
        ValueError, match=r"^device 'cuda': no CUDA device here"
    ):
        Engine(config_of(model_path("qwen3-tiny"), device="cuda"))


def test_a_rank_is_one_of_the_ranks():
    assert DistributedInfo(0, 2).is_primary()
    assert not DistributedInfo(1, 2).is_primary()
    for rank, size in [(2, 2), (-1, 1), (0, 0)]:
        with pytest.raises(ValueError, match=f"^rank {rank} is not one of"):
            DistributedInfo(rank, size)


@pytest.mark.until("ch16", "then a model may lie over several ranks")
def test_a_model_over_several_ranks_is_refused():
    config = config_of(model_path("qwen3-tiny"))
    two = EngineConfig(config.model_path, DistributedInfo(0, 2), "float32")
    with pytest.raises(ValueError, match=r"^a model over several ranks"):
        Engine(two)


def test_defaults_of_a_configuration():
    folder = model_path("qwen3-tiny")
    config = EngineConfig(str(folder), DistributedInfo(0, 1), "auto")
    assert (config.page_size, config.max_running_req) == (1, 256)
    assert config.memory_ratio == 0.9
    assert config.model_config.num_layers == config.hf_config.num_hidden_layers
    assert config.max_seq_len == 4096


@pytest.mark.parametrize(
    ("override", "expected"), [(None, 4096), (100, 100), (9999, 4096)]
)
def test_the_context_is_the_models_or_a_shorter_one(override, expected):
    folder = model_path("qwen3-tiny")
    config = config_of(folder, 16, max_seq_len_override=override)
    assert config.max_seq_len == expected
    engine = load(folder, 16, max_seq_len_override=override)
    rows, length = engine.page_table.shape
    # From ch18 on the dummy request has a row of its own.
    assert rows in (8, 9) and length == align_ceil(expected + 1, 16)


def test_a_request_may_fill_the_context_but_not_pass_it():
    engine = load(model_path("qwen3-tiny"), max_seq_len_override=16)
    reqs = make_reqs([[1] * 15, [2] * 3], greedy(3))
    lend_pages(engine, reqs)
    step(engine, reqs, "prefill")
    step(engine, reqs, "decode")
    with pytest.raises(
        ValueError, match=r"^request 0 has 17 tokens, more than .* of 16$"
    ):
        step(engine, reqs, "decode")
    assert reqs[1].device_len == 5
    step(engine, reqs[1:], "decode")


def pool_bytes(engine):
    keys = engine.ctx.kv_cache.k_cache(0)
    return 2 * keys.nbytes * engine.ctx.kv_cache.num_layers


def pages_in_pool(engine):
    """From ch18 on one more than requests can have: the dummy's."""
    return len(engine.ctx.kv_cache.k_cache(0))


def pages_for(monkeypatch, free, **changes):
    """The engine's pages when `free` bytes are free before it loads."""
    monkeypatch.setattr(Engine, "_free_memory", lambda _: free)
    given = {"num_page_override": None, "memory_ratio": 0.5} | changes
    return Engine(config_of(model_path("qwen3-tiny"), **given))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_pool_fill_the_share_of_the_memory(monkeypatch, dtype):
    engine = pages_for(monkeypatch, 40_000_000, dtype=dtype)
    weights = sum(w.nbytes for w in engine.model.state_dict().values())
    page = pool_bytes(engine) // pages_in_pool(engine)
    used = weights + pool_bytes(engine)
    assert weights > 1_000_000 and page > 1000
    assert 20_000_000 - page < used <= 20_000_000


def test_one_page_is_enough_and_less_is_an_error(monkeypatch):
    engine = load(model_path("qwen3-tiny"))
    weights = sum(w.nbytes for w in engine.model.state_dict().values())
    page = pool_bytes(engine) // pages_in_pool(engine)
    least = weights + page * (1 + pages_in_pool(engine) - engine.num_pages)
    for free, pages in [(least, 1), (least + page - 1, 1)]:
        made = pages_for(monkeypatch, free, memory_ratio=1.0)
        assert made.num_pages == pages
    with pytest.raises(RuntimeError, match=r"^no memory .*raise memory_ratio"):
        pages_for(monkeypatch, least - 1, memory_ratio=1.0)


def test_the_pool_is_not_larger_than_all_rows_can_use(monkeypatch):
    short = {"max_seq_len_override": 30, "max_running_req": 3}
    engine = pages_for(monkeypatch, 1 << 40, **short)
    assert engine.num_pages == 3 * 8


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="no sysconf here")
def test_a_cpu_gives_a_quarter_of_its_memory():
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = load(model_path("qwen3-tiny"))._free_memory()
    assert 0.24 * total < free < 0.26 * total


def test_dummy_weights_are_seeded_and_need_no_weight_file(tmp_path):
    shutil.copy(model_path("llama3-tiny") / "config.json", tmp_path)
    asked = [[3, 1, 4], [1, 5]]
    found = [
        generate(Engine(config), asked, greedy(6))
        for config in [config_of(tmp_path, use_dummy_weight=True)] * 2
    ]
    assert found[0] == found[1]
    assert [len(ids) for ids in found[0]] == [6, 6]
    weights = Engine(config_of(tmp_path, use_dummy_weight=True)).model
    for name, weight in weights.state_dict().items():
        weight = weight.to_dense() if weight.is_mkldnn else weight
        # Of 128 numbers, the fewest here, the deviation is good to a quarter.
        assert 0.015 < weight.std() < 0.025, name
        assert abs(weight.mean()) < 0.006, name


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, {2}),
        ([5, 6], {"eos_token_id": 7}, {5, 6, 7}),
        (2, {"eos_token_id": [2, 9]}, {2, 9}),
        (None, {"eos_token_id": 0}, {0}),
        (None, {}, set()),
    ],
)
def test_end_tokens_are_those_of_both_files(
    tmp_path, config, generation, expected
):
    found = {"eos_token_id": config}
    (tmp_path / "config.json").write_text(json.dumps(found))
    if generation is not None:
        file = tmp_path / "generation_config.json"
        file.write_text(json.dumps(generation))
    assert load_eos_token_ids(str(tmp_path)) == expected


def test_streams_and_events_of_a_cpu_have_nothing_to_wait_for():
    cpu = torch.device("cpu")
    stream, event = new_stream(cpu), new_event(cpu)
    with use_stream(stream):
        one = to_device([1, 2], torch.int64, cpu)
    event.record()
    event.synchronize()
    stream.synchronize()
    assert one.dtype == torch.int64 and one.tolist() == [1, 2]


def test_what_was_copied_to_the_host_stays_as_it_was():
    on_device = torch.tensor([1, 2], dtype=torch.int32)
    on_host = to_host(on_device)
    on_device += 1
    assert on_host.tolist() == [1, 2] and on_host.dtype == torch.int32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 16, 300])
def test_packed_products_are_those_of_plain_weights(dtype, rows):
    if not can_pack(torch.device("cpu"), dtype):
        pytest.skip("oneDNN has no packed products of this dtype here")
    torch.manual_seed(rows)
    x, weight = torch.randn(rows, 96), torch.randn(130, 96)
    for bias in (None, torch.randn(130)):
        given = [t if t is None else t.to(dtype) for t in (x, weight, bias)]
        plain = torch.nn.functional.linear(*given)
        packed = packed_linear(given[0], pack_weight(given[1]), given[2])
        close = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
        torch.testing.assert_close(packed, plain, rtol=close, atol=close)


def test_an_engine_packs_every_product_and_keeps_the_embedding():
    if not can_pack(torch.device("cpu"), torch.float32):
        pytest.skip("oneDNN has no packed products here")
    model = load(model_path("qwen3-tiny")).model
    plain = {
        name
        for name, weight in model.state_dict().items()
        if not weight.is_mkldnn and weight.dim() == 2
    }
    assert plain == {"model.embed_tokens.weight"}


_PRODUCTS = """
import torch
from minisgl.layers.packed import pack_weight, packed_linear

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

torch.set_num_threads(1)
packed = [pack_weight(torch.randn(128, 64 + 32 * i)) for i in range(4)]
before = resident()
for rows in range(1, 200):
    for i, weight in enumerate(packed):
        packed_linear(torch.randn(rows, 64 + 32 * i), weight, None)
print(resident() - before)
"""


def test_products_of_many_sizes_do_not_fill_the_memory():
    if not can_pack(torch.device("cpu"), torch.float32):
        pytest.skip("oneDNN has no packed products here")
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")

    def grown(kept):
        env = {k: v for k, v in os.environ.items() if k not in names}
        env["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
        if kept is not None:
            env |= dict.fromkeys(names, kept)
        command = [sys.executable, "-c", _PRODUCTS]
        return int(subprocess.check_output(command, env=env, timeout=120))

    # Who says how many gets them; else the growth has an end, and soon.
    assert grown(None) < 0.6 * grown("1024")


def test_other_devices_and_dtypes_are_not_packed():
    assert not can_pack(torch.device("cuda"), torch.float32)
    assert not can_pack(torch.device("cpu"), torch.float16)
