"""The GPU attention backends on stand-ins: metadata, choice, refusals, parity."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minisgl.attention import (
    SUPPORTED_ATTENTION_BACKENDS,
    Demand,
    choose_attn_backend,
    create_attention_backend,
    validate_attn_backend,
)
from minisgl.attention.base import HybridBackend
from minisgl.attention.fi import gather_pages
from minisgl.core import Context, set_global_ctx
from minisgl.kvcache import MHAKVCache
from minisgl.models import ModelConfig
from minisgl.utils import (
    arch,
    cached_load_hf_config,
    is_arch_supported,
    is_sm90_supported,
    is_sm100_supported,
)
from minisgl.utils.libraries import MissingLibrary, load_library
from tests.driver import Driver
from tests.fakes import flashinfer
from tests.fakes.install import stand_ins
from tests.handmade import make_batch, make_req
from tests.late_device import make_late
from tests.paged_problem import Problem
from tests.parity import model_under_test, prompts
from tools.models import model_path

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16 = torch.bfloat16
MIXED = [(0, 13), (9, 10), (30, 31), (5, 12), (0, 1), (17, 24), (2, 3)]
DECODES = [(12, 13), (0, 1), (33, 34), (7, 8)]


def config_of(name: str) -> ModelConfig:
    return ModelConfig.from_hf(cached_load_hf_config(str(model_path(name))))


class Shape:
    """The part of a ModelConfig that the backends ask for."""

    kv_cache_dtype = "auto"

    def __init__(self, heads=4, kv_heads=2, head_dim=64):
        self.num_qo_heads, self.num_kv_heads = heads, kv_heads
        self.head_dim = head_dim


class Attention:
    """A backend over the pool of a Problem whose new tokens are not stored yet."""

    def __init__(self, backend, spans, page_size=4, **shape):
        self.p = p = Problem(spans, page_size=page_size, **shape)
        pages = len(p.k_cache)
        self.pool = MHAKVCache(
            p.kv_heads, 2, p.dim, pages, page_size, p.dtype, CPU
        )
        self.ctx = Context(page_size)
        self.ctx.kv_cache = self.pool
        width = (int(p.counts.max()) + 2) * page_size
        # Past the end of a row stands what nobody may read.
        self.ctx.page_table = torch.full((len(spans) + 2, width), 10**6).int()
        self.reqs, new = [], []
        for row, ((cached, total), taken) in enumerate(
            zip(spans, p.pages, strict=True), start=2
        ):
            slots = taken.unsqueeze(1) * page_size + torch.arange(page_size)
            slots = slots.flatten()[:total].int()
            self.ctx.page_table[row, :total] = slots
            req = make_req([7] * total, row, 1)
            req.cached_len = cached
            self.reqs.append(req)
            new.append(slots[cached:])
        self.new = torch.cat(new)
        self.pool.k_cache(1).copy_(p.k_cache)
        self.pool.v_cache(1).copy_(p.v_cache)
        self.k, self.v = (
            cache(1).flatten(0, 1)[self.new].clone()
            for cache in (self.pool.k_cache, self.pool.v_cache)
        )
        for cache in (self.pool.k_cache, self.pool.v_cache):
            cache(1).flatten(0, 1)[self.new] = p.garbage
        set_global_ctx(self.ctx)
        config = Shape(p.heads, p.kv_heads, p.dim)
        self.backend = create_attention_backend(backend, config)

    def prepare(self, phase="prefill"):
        batch = make_batch(self.reqs, phase, self.ctx)
        self.backend.prepare_metadata(batch)
        return batch

    def run(self, phase="prefill"):
        batch = self.prepare(phase)
        return self.backend.forward(self.p.q, self.k, self.v, 1, batch)


CASES = [
    ("fi", 1, True),
    ("fi", 4, True),
    ("fi", 16, True),
    ("fi", 256, True),
    ("fa", 1, True),
    ("fa", 4, True),
    ("fa", 16, True),
    ("fa", 256, False),  # flash-attn 2
    ("fa,fi", 4, True),
    ("fi,torch", 16, False),
]
IDS = [f"{name}-{size}-{'sm90' if h else 'sm80'}" for name, size, h in CASES]


@pytest.mark.parametrize(("name", "page_size", "hopper"), CASES, ids=IDS)
def test_a_mixed_batch_and_a_decode_batch(name, page_size, hopper):
    with stand_ins(hopper=hopper):
        for spans, phase in ((MIXED, "prefill"), (DECODES, "decode")):
            attention = Attention(name, spans, page_size)
            expected = attention.p.expected().float()
            torch.testing.assert_close(attention.run(phase), expected)


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(4, 4), (8, 2), (6, 3), (5, 1), (8, 1)]
)
@pytest.mark.parametrize("name", ["fi", "fa"])
def test_any_number_of_heads_shares_a_kv_head(name, heads, kv_heads):
    with stand_ins():
        for spans, phase in ((MIXED, "prefill"), (DECODES, "decode")):
            attention = Attention(name, spans, heads=heads, kv_heads=kv_heads)
            expected = attention.p.expected().float()
            torch.testing.assert_close(attention.run(phase), expected)


# What is worked out once a step.


def test_fi_metadata_counts_pages():
    table = torch.zeros(3, 12, dtype=torch.int32)
    table[0] = torch.arange(12) + 20  # pages 5, 6, 7
    table[2, :8] = torch.tensor([4, 5, 6, 7, 0, 1, 2, 3])  # pages 1, 0
    with stand_ins():
        attention = Attention("fi", [(0, 1)])
        attention.ctx.page_table = table
        a, b = make_req([7] * 9, 0, 1), make_req([7] * 8, 2, 1)
        a.cached_len, b.cached_len = 0, 7
        attention.reqs = [a, b]
        metadata = attention.prepare().attn_metadata
    assert metadata.cu_seqlens_q_cpu.tolist() == [0, 9, 10]
    assert metadata.cu_pages_cpu.tolist() == [0, 3, 5]
    assert metadata.indices.tolist() == [5, 6, 7, 1, 0]
    assert metadata.last_page_len_cpu.tolist() == [1, 4]
    assert metadata.seq_lens_cpu.tolist() == [9, 8]
    assert metadata.get_last_indices(2).tolist() == [8, 9]
    assert metadata.get_last_indices(1).tolist() == [8]
    for name in ("cu_seqlens_q_cpu", "cu_pages_cpu", "last_page_len_cpu"):
        assert getattr(metadata, name).dtype == torch.int32


def test_fa_metadata_is_the_page_table():
    with stand_ins():
        attention = Attention("fa", MIXED)
        metadata = attention.prepare().attn_metadata
    p = attention.p
    assert metadata.cu_seqlens_q.tolist() == [0, 13, 14, 15, 22, 23, 30, 31]
    assert metadata.cu_seqlens_k.tolist() == [0, 13, 23, 54, 66, 67, 91, 94]
    assert metadata.cache_seqlens.tolist() == [13, 10, 31, 12, 1, 24, 3]
    assert (metadata.max_seqlen_k, metadata.max_seqlen_q) == (31, 13)
    assert metadata.page_table.shape == (7, 8)
    for row, taken in zip(metadata.page_table, p.pages, strict=True):
        assert torch.equal(row[: len(taken)], taken.int())
    assert metadata.get_last_indices(3).tolist() == [12, 13, 14]


def test_gathered_pages_are_those_of_the_rows_in_turn():
    table = (torch.arange(4 * 32).view(4, 32) * 4).int()
    rows, counts = torch.tensor([3, 0, 2]), torch.tensor([2, 1, 8])
    found = gather_pages(table, rows, counts, 4)
    expected = [
        table[r, : 4 * n : 4] // 4 for r, n in zip(rows, counts, strict=True)
    ]
    assert torch.equal(found, torch.cat(expected))
    assert found.dtype == torch.int32


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8])
def test_tensor_cores_decode_for_groups_of_four_and_more(group):
    with stand_ins():
        attention = Attention("fi", DECODES, heads=2 * group)
        wrapper = attention.backend.decode_wrapper
        assert wrapper.use_tensor_cores == (group >= 4)


def test_a_batch_is_planned_once_for_all_layers():
    with stand_ins():
        attention = Attention("fi", MIXED)
        batch = attention.prepare()
        planned = []
        wrapper = batch.attn_metadata.wrapper
        plan = wrapper.plan
        wrapper.plan = lambda **kw: (planned.append(1), plan(**kw))
        for _ in range(3):
            attention.backend.forward(
                attention.p.q, attention.k, attention.v, 1, batch
            )
    assert planned == [1]


def test_a_hybrid_sends_each_phase_to_its_backend():
    with stand_ins():
        attention = Attention("fa,fi", DECODES)
        backend = attention.backend
        assert isinstance(backend, HybridBackend)
        names = [type(part).__name__ for part in vars(backend).values()]
        assert names == ["FlashAttentionBackend", "FlashInferBackend"]
        for phase, kind in (
            ("prefill", "FAMetadata"),
            ("decode", "FIMetadata"),
        ):
            metadata = attention.prepare(phase).attn_metadata
            assert type(metadata).__name__ == kind
        same = Attention("fi,fi", DECODES).backend
        assert type(same).__name__ == "FlashInferBackend"


def test_a_backend_keeps_to_its_own_context():
    for name in ("fi", "fa"):
        with stand_ins():
            attention = Attention(name, MIXED)
            set_global_ctx(Context(page_size=1))
            found = attention.run()
        torch.testing.assert_close(found, attention.p.expected().float())


# Names, choices, refusals.


def test_names_are_one_or_two():
    assert SUPPORTED_ATTENTION_BACKENDS.supported_names() == [
        "torch",
        "fi",
        "fa",
    ]
    for name in ("auto", "torch", "fi", "fa,fi", "fi,torch"):
        assert validate_attn_backend(name) == name
    for name in ("abacus", "fi,abacus", "auto,fi", "", "fi,"):
        with pytest.raises(ValueError, match="is not supported; use one of"):
            validate_attn_backend(name)
    with pytest.raises(
        ValueError, match="'fa,fi,torch': give one name, or two"
    ):
        validate_attn_backend("fa,fi,torch")


ALL = ("flashinfer", "flash_attn", "flash_attn_interface")


@pytest.mark.parametrize(
    ("here", "hopper", "page_size", "chosen"),
    [
        (ALL, True, 1, "fa,fi"),
        (ALL, False, 1, "fi"),
        (ALL, False, 256, "fi"),
        (("flashinfer", "flash_attn"), True, 256, "fi"),
        (("flashinfer",), True, 16, "fi"),
        (("flash_attn_interface",), True, 16, "fa"),
        (("flash_attn",), False, 256, "fa"),
        (("flash_attn",), False, 16, "torch"),
        (("flash_attn_interface",), False, 16, "torch"),
    ],
)
def test_auto_takes_the_best_that_can_serve(here, hopper, page_size, chosen):
    demand = Demand(Shape(), page_size, BF16, CUDA)
    with stand_ins(*here, hopper=hopper):
        assert choose_attn_backend("auto", demand) == chosen


def test_auto_without_a_gpu_or_with_float32_is_torch():
    for device, dtype in ((CPU, BF16), (CUDA, torch.float32)):
        demand = Demand(Shape(), 1, dtype, device)
        assert choose_attn_backend("auto", demand) == "torch"


@pytest.mark.parametrize(
    ("name", "demand", "here", "reason"),
    [
        (
            "fi",
            Demand(Shape(), 1, BF16, CUDA),
            ("flash_attn",),
            "flashinfer cannot be imported .*install flashinfer-python",
        ),
        (
            "fa",
            Demand(Shape(), 256, BF16, CUDA),
            ("flashinfer",),
            "flash_attn cannot be imported .*install flash-attn or use fi",
        ),
        (
            "fi",
            Demand(Shape(head_dim=48), 1, BF16, CUDA),
            ALL,
            "head_dim of 64, 128, 256, not for 48",
        ),
        (
            "fa",
            Demand(Shape(head_dim=320), 256, BF16, CUDA),
            ALL,
            "head_dim up to 256 that 8 divides, not for 320",
        ),
        (
            "fa",
            Demand(Shape(), 16, BF16, CUDA),
            ("flash_attn",),
            "pages of 256 tokens or a multiple of that, page_size is 16; set it",
        ),
    ],
)
def test_what_a_library_cannot_do_is_refused(name, demand, here, reason):
    for names in (name, f"torch,{name}"):
        with (
            stand_ins(*here, hopper=False),
            pytest.raises(
                ValueError, match=f"backend '{name}' cannot be used: .*{reason}"
            ) as caught,
        ):
            choose_attn_backend(names, demand)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["fi", "fa", "fa,fi", "torch,fi"])
def test_float32_is_refused_by_the_libraries(name):
    demand = Demand(Shape(), 256, torch.float32, CUDA)
    with pytest.raises(ValueError, match="bfloat16 or float16, not in float32"):
        choose_attn_backend(name, demand)


def settings_of(tmp_path: Path, **settings) -> dict:
    """An engine's settings for a folder with a config.json and no weights."""
    config = json.loads((model_path("qwen3-tiny") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    return {"pages": 8, "page_size": 1, **settings}


def test_c32_a_gpu_backend_on_a_cpu_is_one_clear_line(tmp_path):
    for name in ("fi", "fa", "fa,fi"):
        with pytest.raises(
            ValueError, match="needs a GPU, not device 'cpu'"
        ) as e:
            Driver(tmp_path, **settings_of(tmp_path, attention_backend=name))
        assert "\n" not in str(e.value)
        assert str(e.value).startswith("attention backend 'f")


def test_a_refusal_comes_before_the_weights_are_read(tmp_path):
    with (
        stand_ins("flash_attn", hopper=False),
        pytest.raises(ValueError, match="page_size is 16"),
    ):
        wanted = {"attention_backend": "fa", "page_size": 16}
        Driver(tmp_path, **settings_of(tmp_path, **wanted))


def test_c32_nothing_imports_a_gpu_library_before_it_is_used():
    code = (
        "import sys, pkgutil, importlib, minisgl\n"
        "for m in pkgutil.walk_packages(minisgl.__path__, 'minisgl.'):\n"
        "    if not m.name.endswith('__main__'): importlib.import_module(m.name)\n"
        "found = {m.partition('.')[0] for m in sys.modules}\n"
        "libraries = {'flashinfer', 'flash_attn', 'sgl_kernel', 'tvm_ffi',\n"
        "             'flash_attn_interface'}\n"
        "print(sorted(found & libraries))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_a_missing_library_is_looked_for_once(monkeypatch):
    with stand_ins("flashinfer"):
        assert load_library("flashinfer") is flashinfer
        with pytest.raises(
            MissingLibrary, match="flash_attn cannot be imported"
        ):
            load_library("flash_attn")
        looked = []
        monkeypatch.setattr(
            "minisgl.utils.libraries.import_module", looked.append
        )
        with pytest.raises(MissingLibrary):
            load_library("flash_attn")
        assert looked == []


def test_generations_of_gpus(monkeypatch):
    with stand_ins(hopper=True):
        assert is_sm90_supported() and not is_sm100_supported()
        assert is_arch_supported(8) and is_arch_supported(8, 9)
        assert not is_arch_supported(9, 1)
    with stand_ins(hopper=False):
        assert not is_sm90_supported()
    with stand_ins():
        monkeypatch.setattr(arch, "_get_torch_cuda_version", lambda: (10, 0))
        assert is_sm100_supported() and is_sm90_supported()
    if not torch.cuda.is_available():
        assert not is_arch_supported(1)


# With a model. On a Hopper `fa` is flash-attn 3, else 2.


def drive(name, page_size, **settings) -> Driver:
    pages = settings.pop("pages", 4096 // page_size)
    return Driver(
        settings.pop("folder", FOLDER),
        page_size=page_size,
        pages=pages,
        attention_backend=name,
        **settings,
    )


@pytest.mark.parity
@pytest.mark.parametrize(("name", "page_size", "hopper"), CASES, ids=IDS)
def test_parity_with_hits_and_chunks(name, page_size, hopper):
    """Prompts in chunks of 40, a shared prefix that is found, staggered arrivals."""
    with stand_ins(hopper=hopper):
        driver = drive(name, page_size, max_extend_tokens=40)
        for uid, ids in enumerate(PROMPTS[4:]):
            driver.submit(uid, ids, max_tokens=16)
            driver.step()
        driver.run()
        shared = [PROMPTS[-1], PROMPTS[-1][:70], PROMPTS[-1] + PROMPTS[3]]
        for uid, ids in enumerate(shared, start=10):
            driver.submit(uid, ids, max_tokens=8)
        driver.run()
    driver.assert_parity()
    driver.assert_clean()
    found = [s.tokens[10] for s in driver.prefills() if 10 in s.tokens]
    assert sum(found) <= page_size, "the prefix was there"


@pytest.mark.parity
@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["fi", "fa", "fa,fi"])
def test_c15_the_answer_does_not_depend_on_the_batch(name, size):
    with stand_ins():
        driver = drive(name, 4)
        for uid in torch.randperm(size).tolist():
            driver.submit(uid, PROMPTS[uid], max_tokens=16)
        driver.run()
    driver.assert_parity(length=16)


@pytest.mark.parity
@pytest.mark.parametrize("model", ["qwen2-tiny", "llama3-tiny"])
@pytest.mark.parametrize("name", ["fi", "fa"])
def test_the_other_families(name, model):
    folder, asked = model_path(model), prompts(model)[1:5]
    with stand_ins():
        driver = drive(name, 16, folder=folder)
        for uid, ids in enumerate(asked):
            driver.submit(uid, ids, max_tokens=16)
        driver.run()
    driver.assert_parity(length=16)


@pytest.mark.parity
def test_mistral_has_heads_that_only_one_library_takes():
    folder, asked = model_path("mistral-tiny"), prompts("mistral-tiny")[1:5]
    with stand_ins():
        with pytest.raises(
            ValueError, match="head_dim of 64, 128, 256, not for 48"
        ):
            drive("fi", 16, folder=folder)
        driver = drive("auto", 16, folder=folder)
        backend = driver.scheduler.engine.attn_backend
        assert type(backend).__name__ == "FlashAttentionBackend"
        for uid, ids in enumerate(asked):
            driver.submit(uid, ids, max_tokens=16)
        driver.run()
    driver.assert_parity(length=16)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["fi", "fa", "fa,fi"])
def test_a_batch_is_planned_when_the_one_before_is_done(name):
    """On a device that is late, what a batch planned must not be overwritten."""
    with stand_ins():
        driver = drive(name, 4, overlap=True, max_extend_tokens=60)
        make_late(driver.scheduler)
        driver._log_steps()
        for uid, ids in enumerate(PROMPTS[3:]):
            driver.submit(uid, ids, max_tokens=(16, 6, 8)[uid % 3])
        driver.run()
    driver.assert_parity()
    driver.assert_clean()
