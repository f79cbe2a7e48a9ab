"""Every kernel beside its lines of torch, on the same tensors."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from minisgl.kernel import fast_compare_key, indexing, store_cache
from minisgl.kernel.index import indexing_torch
from minisgl.kernel.moe_align import (
    moe_align_block_size,
    moe_align_block_size_torch,
)
from minisgl.kernel.moe_impl import is_interpreted
from minisgl.kernel.radix import fast_compare_key_torch
from minisgl.kernel.store import store_cache_torch
from minisgl.moe import create_moe_backend
from minisgl.selfcheck.delta import check_delta
from minisgl.selfcheck.operators import (
    check_draws,
    check_operators,
    share_apart,
)
from minisgl.selfcheck.report import Check, Setting, Skip

_ROWS = [(8, 128, torch.bfloat16), (2, 64, torch.float32), (1, 3, torch.half)]
_TABLES = [(1024, torch.bfloat16), (4096, torch.float32), (5, torch.half)]
# What rounding may do; see `share_apart`.
_ROUNDING = {torch.float32: 3e-5, torch.bfloat16: 3e-2}


def check_store(setting: Setting) -> str:
    """Rows out of order, from slices of a larger product, into a layer."""
    for heads, dim, dtype in _ROWS:
        shape = (2, 2, 3, 90, heads, dim)
        mine, wanted = torch.zeros(shape, dtype=dtype, device=setting.device)
        row = heads * dim
        qkv = torch.randn(70, 4 * row, device=setting.device).to(dtype)
        k, v = qkv[:, 2 * row : 3 * row], qkv[:, 3 * row :]
        slots = torch.randperm(90, device=setting.device)[:70].int()
        store_cache(mine[0, 1], mine[1, 1], slots, k, v)
        store_cache_torch(wanted[0, 1], wanted[1, 1], slots, k, v)
        assert torch.equal(mine, wanted), f"rows of {row} x {dtype} differ"
    return f"{len(_ROWS)} shapes of rows, equal bits"


def check_index(setting: Setting) -> str:
    """A whole table, and one that has the rows of some ids only."""
    for dim, dtype in _TABLES:
        table = torch.randn(50, dim, device=setting.device).to(dtype)
        ids = torch.randint(50, (67,), device=setting.device).int()
        for rows, held in ((table, None), (table[17:34], (17, 34))):
            mine = indexing(rows, ids, vocab_range=held)
            wanted = indexing_torch(rows, ids, held)
            assert torch.equal(mine, wanted), f"{dim} x {dtype}, {held} differ"
    return f"{len(_TABLES)} tables, whole and in part, equal bits"


def check_radix(setting: Setting) -> str:
    """Keys that part at every place of 200."""
    key = torch.arange(200, dtype=torch.int32)
    for place in range(200):
        other = key.clone()
        other[place] = -1
        found = fast_compare_key(key, other)
        assert found == fast_compare_key_torch(key, other) == place
    return "200 pairs of keys"


def check_align(setting: Setting) -> str:
    """Counts and blocks equal; the pairs of an expert may come in any order."""
    for tokens, experts, topk in ((1, 8, 2), (300, 128, 8), (3000, 60, 4)):
        scores = torch.rand(tokens, experts, device=setting.device)
        ids = scores.topk(topk).indices.int()
        mine = moe_align_block_size(ids, 16, experts)
        wanted = moe_align_block_size_torch(ids, 16, experts)
        assert torch.equal(mine[2], wanted[2]), "another number of places"
        assert torch.equal(mine[1], wanted[1]), "other experts of blocks"
        flat = torch.cat([ids.flatten(), ids.new_full((1,), experts)])
        one, other = (flat[order.long()] for order in (mine[0], wanted[0]))
        assert torch.equal(one, other), "a pair is with another expert"
        assert torch.equal(mine[0].sort()[0], wanted[0].sort()[0])
    return "3 routings, the same blocks"


def check_experts(setting: Setting) -> str:
    """Triton's experts against torch's, for few tokens and for many."""
    if find_spec("triton") is None:
        raise Skip("triton is not installed")
    on_gpu = setting.device.type == "cuda"
    if not (on_gpu or is_interpreted()):
        raise Skip("no CUDA device, and TRITON_INTERPRET is not 1")
    dtypes = list(_ROUNDING) if on_gpu else [torch.float32]
    worst = {}
    for dtype in dtypes:
        far = [_distance(setting, dtype, n) for n in (1, 33, 150)]
        worst[dtype] = max(far)
        assert worst[dtype] < _ROUNDING[dtype], f"{dtype}: {worst[dtype]:.1e}"
    return ", ".join(
        f"{str(dtype).removeprefix('torch.')}: {far:.1e} apart"
        for dtype, far in worst.items()
    )


def _distance(setting: Setting, dtype: torch.dtype, tokens: int) -> float:
    experts, topk, hidden, middle = 8, 2, 128, 96

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=setting.device).to(dtype)

    x, gates = draw(tokens, hidden), draw(tokens, experts)
    w1 = draw(experts, 2 * middle, hidden) * hidden**-0.5
    w2 = draw(experts, hidden, middle) * middle**-0.5
    wanted, got = (
        create_moe_backend(name, setting.device)
        .forward(x, w1, w2, gates, topk, True, "silu", False)
        .float()
        for name in ("torch", "fused")
    )
    return share_apart(got, wanted)


KERNELS: dict[str, Check] = {
    "kernel: store": check_store,
    "kernel: index": check_index,
    "kernel: radix keys (CPU)": check_radix,
    "kernel: blocks of experts": check_align,
    "kernel: experts (Triton)": check_experts,
    "kernel: gated delta rule": check_delta,
    "kernel: operators (flashinfer)": check_operators,
    "kernel: draws (flashinfer)": check_draws,
}
