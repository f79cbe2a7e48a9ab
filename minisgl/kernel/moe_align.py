"""Which rows of a grouped product belong to which expert."""

from __future__ import annotations

from functools import cache

import torch

from minisgl.kernel.compile import Library, Target
from minisgl.kernel.utils import (
    check_launch,
    current_stream,
    kernel_target,
    try_load_jit,
)
from minisgl.utils import align_ceil

Aligned = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# The kernel has one thread an expert.
_MAX_EXPERTS = 1024


@cache
def _jit_align_module(target: Target) -> Library | None:
    return try_load_jit(
        "moe_align",
        files=["moe_align.cu"],
        wrappers=[("align_blocks", "align_blocks")],
        target=target,
    )


def moe_align_block_size_torch(
    topk_ids: torch.Tensor, block_size: int, num_experts: int
) -> Aligned:
    """What `moe_align_block_size` means, in torch; nothing waits for the GPU."""
    ids = topk_ids.flatten().long()
    sorted_ids, experts, _ = _outputs(topk_ids, block_size, num_experts)
    sorted_ids.fill_(len(ids))
    counts = ids.new_zeros(num_experts).scatter_add_(
        0, ids, torch.ones_like(ids)
    )
    padded = (counts + block_size - 1) // block_size * block_size
    ends = padded.cumsum(0)
    # The nth pair of an expert stands n places behind where the expert begins.
    order = ids.argsort(stable=True)
    owner = ids[order]
    rank = torch.arange(len(ids), device=ids.device)
    rank -= (counts.cumsum(0) - counts)[owner]
    sorted_ids[(ends - padded)[owner] + rank] = order.to(torch.int32)
    starts = torch.arange(len(experts), device=ids.device) * block_size
    found = torch.searchsorted(ends, starts, right=True)
    experts.copy_(torch.where(starts < ends[-1], found, 0))
    return sorted_ids, experts, ends[-1:].to(torch.int32)


def moe_align_block_size(
    topk_ids: torch.Tensor, block_size: int, num_experts: int
) -> Aligned:
    """Sort (token, choice) pairs by expert, in blocks that have one expert.

    topk_ids: int32 [T, k], the experts of each token. Pair i is choice i % k of
        token i // k.
    Returns three int32 tensors. Their sizes are what the worst case needs, so
    that nobody has to wait for a number from the GPU.

    sorted_token_ids: pairs, expert after expert; each expert's are padded to
        whole blocks with the number T k, which is no pair.
    expert_ids: the expert of each block, 0 past the last block that is used.
    num_tokens_post_padded: [1], how many places are used, padding included.
    """
    target = kernel_target(topk_ids.device)
    module = None if target is None else _jit_align_module(target)
    if module is None or num_experts > _MAX_EXPERTS:
        return moe_align_block_size_torch(topk_ids, block_size, num_experts)
    ids = topk_ids.contiguous()
    if ids.dtype != torch.int32:
        raise ValueError(f"expert ids are int32, not {ids.dtype}")
    sorted_ids, experts, total = _outputs(ids, block_size, num_experts)
    status = module.align_blocks(
        *(ids.data_ptr(), ids.numel(), block_size),
        *(sorted_ids.data_ptr(), len(sorted_ids)),
        *(experts.data_ptr(), total.data_ptr()),
        current_stream(ids.device),
    )
    check_launch("moe_align", status)
    return sorted_ids, experts, total


def _outputs(
    topk_ids: torch.Tensor, block_size: int, num_experts: int
) -> Aligned:
    """Empty tensors with room for the worst case.

    That is that each expert with any pair lacks all but one of its last block.
    """
    pairs = topk_ids.numel()
    padding = min(pairs, num_experts) * (block_size - 1)
    room = align_ceil(pairs + padding, block_size)
    sizes = (room, room // block_size, 1)
    made = [topk_ids.new_empty(size, dtype=torch.int32) for size in sizes]
    return made[0], made[1], made[2]
