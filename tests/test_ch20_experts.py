"""Blocks of one expert, and the Triton kernels that compute them."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import minisgl.moe
from minisgl.kernel import moe_align as align_module
from minisgl.kernel.moe_align import (
    moe_align_block_size,
    moe_align_block_size_torch,
)
from minisgl.kernel.utils import simulated_kernels
from minisgl.moe.fused import (
    get_default_config,
    try_get_optimal_moe_config,
)
from tests.experts import CASES, LARGE, bound, distance
from tests.parity import prompts, reference
from tools.models import model_path

ROOT = Path(minisgl.moe.__file__).parents[2]
HAS_GPU = torch.cuda.is_available()
WAYS = ["torch", "simulator", *(["cuda"] if HAS_GPU else [])]


# -- blocks --------------------------------------------------------------------


@pytest.fixture(params=WAYS)
def aligned(request):
    """`moe_align_block_size` by torch, the simulated kernel, and the real one."""
    device = "cuda" if request.param == "cuda" else "cpu"

    def align(ids, block_size, num_experts):
        by_torch = request.param == "torch"
        function = (
            moe_align_block_size_torch if by_torch else moe_align_block_size
        )
        simulated = request.param == "simulator"
        with simulated_kernels() if simulated else nullcontext():
            result = function(ids.to(device), block_size, num_experts)
        return [x.cpu() for x in result]

    return align


def check_blocks(ids, block_size, num_experts, result):
    """What `moe_align_block_size` promises, place by place."""
    order, experts, total = result
    flat = ids.flatten()
    pairs, used = len(flat), int(total)
    assert {x.dtype for x in result} == {torch.int32}
    assert len(order) == len(experts) * block_size >= used
    assert used % block_size == 0
    found = order[:used].view(-1, block_size)
    for expert, block in zip(experts[: len(found)], found, strict=True):
        mine = block[block < pairs]
        assert len(mine) and (flat[mine] == expert).all()
        # Padding comes at the end of an expert's last block only.
        assert (block[len(mine) :] == pairs).all()
    assert sorted(order[order < pairs].tolist()) == [*range(pairs)]
    assert (order[used:] == pairs).all() and (experts[len(found) :] == 0).all()
    counts = flat.bincount(minlength=num_experts)
    needed = (counts + block_size - 1) // block_size
    assert used == int(needed.sum()) * block_size
    assert experts[: len(found)].tolist() == sorted(experts[: len(found)])


@pytest.mark.parametrize(
    "tokens, experts, topk, block_size",
    [
        (1, 8, 2, 16),
        (50, 8, 2, 16),
        (17, 4, 4, 16),
        (64, 1, 1, 64),
        (300, 128, 8, 64),
        (40, 1024, 3, 16),
        (3000, 60, 4, 32),
    ],
)
def test_every_pair_is_in_a_block_of_its_expert(
    aligned, tokens, experts, topk, block_size
):
    rng = torch.Generator().manual_seed(tokens)
    scores = torch.rand(tokens, experts, generator=rng)
    ids = scores.topk(topk).indices.int()
    check_blocks(ids, block_size, experts, aligned(ids, block_size, experts))


@pytest.mark.parametrize("expert", [0, 6, 7])
def test_one_expert_may_have_everything(aligned, expert):
    ids = torch.full((33, 1), expert, dtype=torch.int32)
    result = aligned(ids, 16, 8)
    check_blocks(ids, 16, 8, result)
    assert int(result[2]) == 48


def test_no_token_is_no_block(aligned):
    ids = torch.empty(0, 2, dtype=torch.int32)
    order, experts, total = aligned(ids, 16, 8)
    assert int(total) == 0 and len(order) == len(experts) == 0


def test_there_is_room_for_the_worst_routing(aligned):
    # Each expert gets one pair more than a block.
    ids = torch.arange(8, dtype=torch.int32).repeat(17).view(-1, 1)
    order, _, total = aligned(ids, 16, 8)
    assert int(total) == 8 * 32 <= len(order)


def test_what_the_kernel_cannot_do_torch_does(monkeypatch):
    asked = []
    monkeypatch.setattr(
        align_module, "_jit_align_module", lambda target: asked.append(target)
    )
    ids = torch.tensor([[3, 2]], dtype=torch.int32)
    with simulated_kernels():
        result = moe_align_block_size(ids, 16, 8)
    assert asked == ["simulator"]
    check_blocks(ids, 16, 8, result)
    monkeypatch.undo()
    with simulated_kernels():
        many = torch.tensor([[3, 2000]], dtype=torch.int32)
        check_blocks(many, 16, 3000, moe_align_block_size(many, 16, 3000))
        with pytest.raises(ValueError, match=r"int32, not torch\.int64"):
            moe_align_block_size(many.long(), 16, 8)


# -- the Triton kernels ----------------------------------------------------------


@pytest.fixture(scope="module")
def interpreted():
    """What tests/experts.py found, with Triton's interpreter on the CPU."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "experts.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_triton_is_what_torch_computes(interpreted, case):
    assert interpreted["distances"][str(case)] < bound(case)


@pytest.mark.parity
def test_parity_through_tritons_experts(interpreted):
    folder = model_path("qwen3-moe-tiny")
    answers = interpreted["answers"]
    for ids, got in zip(prompts(folder)[1:3], answers, strict=True):
        assert got == reference(folder, ids, 64).ids[: len(got)]
    # Three layers, one prefill and three decode steps.
    assert interpreted["calls"] == 3 * 4 and len(answers[0]) == 4


@pytest.mark.skipif(not HAS_GPU, reason="no CUDA device")
def test_triton_on_a_gpu_is_what_torch_computes():
    cases = [*CASES, *LARGE]
    found = {case: distance(case, "cuda") for case in cases}
    far = {str(case): d for case, d in found.items() if d >= bound(case)}
    assert not far


def test_blocks_follow_the_number_of_pairs_an_expert_gets():
    shape = (128, 1536, 2048, 8)
    few, many = (get_default_config(m, *shape) for m in (4, 4096))
    assert few["BLOCK_SIZE_M"] < many["BLOCK_SIZE_M"]
    for config in (few, many):
        blocks = [config[f"BLOCK_SIZE_{x}"] for x in "MNK"]
        # tl.dot takes powers of two, 16 at least.
        assert all(b >= 16 and b & (b - 1) == 0 for b in blocks)
    w1, w2 = (128, 1536, 2048), (128, 2048, 768)
    assert try_get_optimal_moe_config(w1, w2, 8, 4) == few
    assert try_get_optimal_moe_config(w1, w2, 8, 4096) == many
