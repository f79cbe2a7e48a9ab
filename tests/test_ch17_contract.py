"""What the engine relies on in the GPU libraries: the stand-ins and the real ones.

Every test runs on the stand-in, on the CPU in float32, and on the library if there is
a GPU and it is installed, in bfloat16. So what the other tests show of the engine with
stand-ins holds with the libraries.
"""

import inspect
from importlib import import_module
from typing import Any, NamedTuple

import pytest
import torch

from minisgl.layers.rotary import RotaryEmbedding
from tests.paged_problem import Problem

MIXED = [(0, 13), (9, 10), (30, 31), (5, 12), (0, 1), (300, 324), (2, 3)]
DECODES = [(12, 13), (0, 1), (33, 34), (7, 8), (620, 621)]
PAGE_SIZES = [1, 4, 16, 256]


WHICH = ["fake", "real"] if torch.cuda.is_available() else ["fake"]


class Kit(NamedTuple):
    """A library, and what it is run with."""

    lib: Any
    device: torch.device
    dtype: torch.dtype
    tolerance: float

    def problem(self, spans, **settings) -> Problem:
        return Problem(spans, dtype=self.dtype, device=self.device, **settings)

    def close(self, found, expected) -> None:
        torch.testing.assert_close(
            found.cpu().double(),
            expected.cpu().double(),
            rtol=self.tolerance,
            atol=self.tolerance,
        )

    def randn(self, *shape) -> torch.Tensor:
        rng = torch.Generator().manual_seed(len(shape))
        return torch.randn(shape, generator=rng).to(self.device, self.dtype)

    def workspace(self) -> torch.Tensor:
        return torch.zeros(128 << 20, dtype=torch.uint8, device=self.device)


def kit_of(name: str, which: str) -> Kit:
    if which == "fake":
        module = import_module(f"tests.fakes.{name}")
        return Kit(module, torch.device("cpu"), torch.float32, 1e-5)
    try:
        module = import_module(name)
    except ImportError as error:
        pytest.skip(str(error))
    return Kit(module, torch.device("cuda"), torch.bfloat16, 2e-2)


@pytest.fixture(params=WHICH)
def fi(request):
    return kit_of("flashinfer", request.param)


@pytest.fixture(params=WHICH)
def fa2(request):
    return kit_of("flash_attn", request.param)


@pytest.fixture(params=WHICH)
def fa3(request):
    return kit_of("flash_attn_interface", request.param)


@pytest.mark.parametrize("name", ["flashinfer", "flash_attn"])
def test_the_libraries_themselves_are_tested_too(name):
    if not torch.cuda.is_available():
        pytest.skip("no GPU: only the stand-ins are held to the contract")
    kit_of(name, "real")


# flashinfer: prefill.


def plan_prefill(wrapper, p: Problem) -> None:
    wrapper.plan(
        qo_indptr=p.cumulated(p.new),
        paged_kv_indptr=p.cumulated(p.counts),
        paged_kv_indices=p.indices,
        paged_kv_last_page_len=p.last_page_len,
        num_qo_heads=p.heads,
        num_kv_heads=p.kv_heads,
        head_dim_qk=p.dim,
        page_size=p.page_size,
        causal=True,
        q_data_type=p.dtype,
        kv_data_type=p.dtype,
        seq_lens=p.lengths.int(),
    )


def prefill_wrapper(fi: Kit):
    return fi.lib.BatchPrefillWithPagedKVCacheWrapper(
        fi.workspace(), "NHD", backend="fa2"
    )


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_prefill_attends_over_pages_of_any_size(fi, page_size, dim):
    p, wrapper = (
        fi.problem(MIXED, page_size=page_size, dim=dim),
        prefill_wrapper(fi),
    )
    plan_prefill(wrapper, p)
    fi.close(wrapper.run(p.q, (p.k_cache, p.v_cache)), p.expected())


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (6, 1)])
def test_prefill_with_any_group_of_heads(fi, heads, kv_heads):
    p = fi.problem(MIXED, heads=heads, kv_heads=kv_heads)
    wrapper = prefill_wrapper(fi)
    plan_prefill(wrapper, p)
    fi.close(wrapper.run(p.q, (p.k_cache, p.v_cache)), p.expected())


def test_prefill_of_queries_that_lie_between_keys_and_values(fi):
    p, wrapper = fi.problem(MIXED), prefill_wrapper(fi)
    plan_prefill(wrapper, p)
    wide = torch.zeros(len(p.q), 8, 64, dtype=fi.dtype, device=fi.device)
    wide[:, 2:6] = p.q
    fi.close(wrapper.run(wide[:, 2:6], (p.k_cache, p.v_cache)), p.expected())


def test_a_wrapper_plans_again_for_another_batch(fi):
    wrapper = prefill_wrapper(fi)
    for spans in (MIXED, MIXED[:2], DECODES):
        p = fi.problem(spans)
        plan_prefill(wrapper, p)
        fi.close(wrapper.run(p.q, (p.k_cache, p.v_cache)), p.expected())


def test_prefill_refuses_queries_that_were_not_planned(fi):
    p, wrapper = fi.problem(MIXED), prefill_wrapper(fi)
    plan_prefill(wrapper, p)
    cache = (p.k_cache, p.v_cache)
    with pytest.raises(ValueError, match="does not match"):
        wrapper.run(p.q[:-1], cache)
    with pytest.raises(ValueError, match="dtype of q"):
        wrapper.run(p.q.half(), cache)


# flashinfer: decode.


def plan_decode(wrapper, p: Problem) -> None:
    wrapper.plan(
        indptr=p.cumulated(p.counts),
        indices=p.indices,
        last_page_len=p.last_page_len,
        num_qo_heads=p.heads,
        num_kv_heads=p.kv_heads,
        head_dim=p.dim,
        page_size=p.page_size,
        q_data_type=p.dtype,
        kv_data_type=p.dtype,
        seq_lens=p.lengths.int(),
    )


def decode_wrapper(fi: Kit, tensor_cores: bool):
    return fi.lib.BatchDecodeWithPagedKVCacheWrapper(
        fi.workspace(), "NHD", use_tensor_cores=tensor_cores
    )


@pytest.mark.parametrize("tensor_cores", [False, True])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_decode_attends_over_pages_of_any_size(fi, page_size, tensor_cores):
    p = fi.problem(DECODES, page_size=page_size)
    wrapper = decode_wrapper(fi, tensor_cores)
    plan_decode(wrapper, p)
    fi.close(wrapper.run(p.q, (p.k_cache, p.v_cache)), p.expected())


@pytest.mark.parametrize("tensor_cores", [False, True])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("dim", [64, 128])
def test_decode_with_either_kernel(fi, dim, group, tensor_cores):
    p = fi.problem(DECODES, heads=2 * group, dim=dim)
    wrapper = decode_wrapper(fi, tensor_cores)
    plan_decode(wrapper, p)
    fi.close(wrapper.run(p.q, (p.k_cache, p.v_cache)), p.expected())


def test_some_groups_need_tensor_cores(fi):
    p = fi.problem(DECODES, heads=10)
    with pytest.raises(Exception, match="Unsupported group_size: 5"):
        plan_decode(decode_wrapper(fi, False), p)
    wrapper = decode_wrapper(fi, True)
    plan_decode(wrapper, p)
    fi.close(wrapper.run(p.q, (p.k_cache, p.v_cache)), p.expected())


# flash-attn 2.


@pytest.mark.parametrize("page_size", [256, 512])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (6, 1)])
def test_fa2_decode_reads_the_page_table(fa2, page_size, heads, kv_heads):
    shape = {"heads": heads, "kv_heads": kv_heads, "page_size": page_size}
    p = fa2.problem(DECODES, **shape)
    out = fa2.lib.flash_attn_with_kvcache(
        p.q.unsqueeze(1),
        p.k_cache,
        p.v_cache,
        cache_seqlens=p.on_device(p.lengths),
        block_table=p.table(width=5),
        causal=True,
    )
    fa2.close(out.squeeze(1), p.expected())


@pytest.mark.parametrize("dim", [64, 128])
def test_fa2_prefill_reads_the_page_table(fa2, dim):
    p = fa2.problem(MIXED, page_size=256, dim=dim)
    out = fa2.lib.flash_attn_varlen_func(
        p.q,
        p.k_cache,
        p.v_cache,
        p.on_device(p.cumulated(p.new)),
        p.on_device(p.cumulated(p.lengths)),
        int(p.new.max()),
        int(p.lengths.max()),
        causal=True,
        block_table=p.table(),
    )
    fa2.close(out, p.expected())


def test_fa2_wants_pages_that_256_divides(fa2):
    p = fa2.problem(DECODES, page_size=16)
    with pytest.raises(RuntimeError, match="divisible by 256"):
        fa2.lib.flash_attn_with_kvcache(
            p.q.unsqueeze(1),
            p.k_cache,
            p.v_cache,
            cache_seqlens=p.on_device(p.lengths),
            block_table=p.table(),
            causal=True,
        )


# flash-attn 3.


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("spans", [MIXED, DECODES], ids=["prefill", "decode"])
def test_fa3_reads_pages_of_any_size(fa3, spans, page_size):
    p = fa3.problem(spans, page_size=page_size)
    out = fa3.lib.flash_attn_with_kvcache(
        p.q,
        p.k_cache,
        p.v_cache,
        cache_seqlens=p.on_device(p.lengths),
        page_table=p.table(),
        cu_seqlens_q=p.on_device(p.cumulated(p.new)),
        max_seqlen_q=int(p.new.max()),
        causal=True,
    )
    fa3.close(out, p.expected())


# flashinfer: operators.


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return (
        x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    )


def test_rmsnorm_of_rows_and_of_heads_in_wider_rows(fi):
    x, weight = fi.randn(7, 128), fi.randn(128)
    fi.close(fi.lib.rmsnorm(x, weight, 1e-6), rms(x, weight))
    wide, weight = fi.randn(7, 8, 64), fi.randn(64)
    heads = wide[:, 2:6]
    before = wide.clone()
    out = fi.lib.rmsnorm(heads, weight, 1e-6)
    fi.close(out, rms(heads, weight))
    assert out.is_contiguous() and torch.equal(wide, before)


def test_fused_add_rmsnorm_writes_into_both(fi):
    x, residual, weight = fi.randn(7, 128), fi.randn(7, 128) * 3, fi.randn(128)
    total = x.double() + residual.double()
    fi.lib.fused_add_rmsnorm(x, residual, weight, 1e-6)
    fi.close(residual, total)
    fi.close(x, rms(total, weight))


def test_silu_and_mul_into_a_new_tensor_or_a_given_one(fi):
    x = fi.randn(5, 256)
    gate, up = x.double().chunk(2, -1)
    expected = torch.nn.functional.silu(gate) * up
    fi.close(fi.lib.silu_and_mul(x), expected)
    out = torch.empty_like(x[:, :128]).contiguous()
    fi.lib.silu_and_mul(x, out)
    fi.close(out, expected)
    with pytest.raises(ValueError, match="16 bytes"):
        fi.lib.silu_and_mul(x[:, :2])


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize(("size", "rotary"), [(64, 64), (128, 128), (128, 64)])
def test_rope_rotates_in_place_what_lies_in_one_wide_row(
    fi, size, rotary, index
):
    rope = RotaryEmbedding(size, rotary, 512, 10000.0)
    qkv = fi.randn(6, 8 * size)
    before = qkv.clone()
    q, k, v = qkv.split([4 * size, 2 * size, 2 * size], -1)
    positions = torch.tensor([0, 1, 2, 100, 300, 511])
    old_q, old_k = (x.cpu().double() for x in (q, k))
    expected = rope.forward(positions, old_q, old_k)
    fi.lib.apply_rope_with_cos_sin_cache_inplace(
        positions.to(fi.device, index),
        q,
        k,
        size,
        rope._cos_sin_cache.to(fi.device),
    )
    fi.close(q, expected[0])
    fi.close(k, expected[1])
    assert torch.equal(v, before[:, 6 * size :])


# flashinfer: sampling.


def rows_of_probs(fi: Kit) -> torch.Tensor:
    """Six equal rows of 1,000 tokens, from a seeded draw."""
    rng = torch.Generator().manual_seed(3)
    row = (3 * torch.randn(1000, generator=rng)).softmax(-1)
    return row.repeat(6, 1).to(fi.device)


def test_softmax_has_a_temperature_for_each_row(fi):
    logits = 5 * fi.randn(4, 999).float()
    temperatures = torch.tensor([1.0, 0.3, 2.0, 1e-3], device=fi.device)
    found = fi.lib.sampling.softmax(logits, temperatures)
    expected = (logits.double() / temperatures.double().unsqueeze(1)).softmax(
        -1
    )
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=1e-6)
    half = fi.lib.sampling.softmax(logits.to(fi.dtype), temperatures)
    assert half.dtype == torch.float32


def test_top_k_keeps_so_many_and_renormalises(fi):
    probs = rows_of_probs(fi)
    wanted = [1, 2, 50, 999, 1000, 5000]
    top_k = torch.tensor(wanted, device=fi.device)
    found = fi.lib.sampling.top_k_renorm_probs(probs, top_k)
    assert (found > 0).sum(-1).tolist() == [min(k, 1000) for k in wanted]
    for row, k in zip(found, wanted, strict=True):
        kept = probs[0].topk(min(k, 1000))
        expected = torch.zeros_like(row)
        expected[kept.indices] = kept.values / kept.values.sum()
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-7)


def test_top_p_keeps_the_least_number_that_reaches_it(fi):
    probs = rows_of_probs(fi)
    wanted = [1e-9, 0.1, 0.5, 0.9, 0.99, 0.6]
    top_p = torch.tensor(wanted, device=fi.device)
    found = fi.lib.sampling.top_p_renorm_probs(
        probs, top_p, is_deterministic=True
    )
    ordered = probs[0].double().sort(descending=True)
    for row, p in zip(found, wanted, strict=True):
        before = ordered.values.cumsum(-1) - ordered.values
        kept = ordered.indices[before < p]
        assert set(row.nonzero().flatten().tolist()) == set(kept.tolist())
        share = probs[0][kept] / probs[0][kept].sum()
        torch.testing.assert_close(row[kept], share, rtol=1e-4, atol=1e-7)


# The parameters.

NAMES = {
    "flashinfer": [
        "BatchPrefillWithPagedKVCacheWrapper.__init__",
        "BatchPrefillWithPagedKVCacheWrapper.plan",
        "BatchPrefillWithPagedKVCacheWrapper.run",
        "BatchDecodeWithPagedKVCacheWrapper.__init__",
        "BatchDecodeWithPagedKVCacheWrapper.plan",
        "BatchDecodeWithPagedKVCacheWrapper.run",
        "CUDAGraphBatchDecodeWithPagedKVCacheWrapper.__init__",
        "rmsnorm",
        "fused_add_rmsnorm",
        "silu_and_mul",
        "apply_rope_with_cos_sin_cache_inplace",
        "sampling.softmax",
        "sampling.top_k_renorm_probs",
        "sampling.top_p_renorm_probs",
    ],
    "flash_attn": ["flash_attn_with_kvcache", "flash_attn_varlen_func"],
    "flash_attn_interface": ["flash_attn_with_kvcache"],
}


def parameters(module, name: str) -> dict[str, Any]:
    """Names in order, with their defaults."""
    for part in name.split("."):
        module = getattr(module, part)
    found = inspect.signature(module).parameters.values()
    return {each.name: each.default for each in found}


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("module", NAMES)
def test_parameters_and_defaults_are_those_of_the_stand_in(module, which):
    fake, library = (kit_of(module, w).lib for w in ("fake", which))
    for name in NAMES[module]:
        here, there = parameters(fake, name), parameters(library, name)
        assert [*here.items()] == [*there.items()], name
