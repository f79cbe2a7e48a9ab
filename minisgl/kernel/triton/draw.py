"""One token a row of logits, in Triton: the logits are read once and a bit."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sum_blocks_kernel(
    logits_ptr,
    temperatures_ptr,
    best_ptr,
    place_ptr,
    sum_ptr,
    vocab,
    row_stride,
    blocks,
    BLOCK: tl.constexpr,
):
    """Of one block of one row: its best logit, where that is, and its weight.

    A token weighs exp((logit - best of the block) / temperature).
    """
    row, block = tl.program_id(0), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab
    x = tl.load(
        logits_ptr + row.to(tl.int64) * row_stride + token,
        mask=inside,
        other=-float("inf"),
    ).to(tl.float32)
    best = tl.max(x, 0)
    # A greedy row has temperature 0; its weights are of no use.
    temperature = tl.maximum(tl.load(temperatures_ptr + row), 1e-6)
    # NaN, which max passes over, and infinity make the sum NaN.
    base = tl.where(best == -float("inf"), 0.0, best)
    weights = tl.exp((x - base) / temperature)
    here = row * blocks + block
    tl.store(best_ptr + here, best)
    tl.store(place_ptr + here, block * BLOCK + tl.argmax(x, 0))
    tl.store(sum_ptr + here, tl.sum(weights, 0))


@triton.jit
def pick_kernel(
    logits_ptr,
    temperatures_ptr,
    uniforms_ptr,
    best_ptr,
    place_ptr,
    sum_ptr,
    out_ptr,
    vocab,
    row_stride,
    blocks,
    failed,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """The token where a row's running weight passes its share of the total.

    First the block is found, then the token in it. Rows of temperature 0 get
    the best token, rows whose weights are not numbers get `failed`.
    """
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    there = block < blocks
    here = row * blocks + block
    best = tl.load(best_ptr + here, mask=there, other=-float("inf"))
    sums = tl.load(sum_ptr + here, mask=there, other=0.0)
    given = tl.load(temperatures_ptr + row)
    temperature = tl.maximum(given, 1e-6)
    top = tl.max(best, 0)
    likeliest = tl.load(place_ptr + row * blocks + tl.argmax(best, 0))
    scaled = sums * tl.exp((best - top) / temperature)
    scaled = tl.where(best == -float("inf"), sums * 0.0, scaled)
    edges = tl.cumsum(scaled, 0)
    total = tl.sum(scaled, 0)
    wanted = tl.load(uniforms_ptr + row) * total
    chosen = tl.sum(((edges <= wanted) & there).to(tl.int32), 0)
    chosen = tl.minimum(chosen, blocks - 1)
    before = tl.sum(tl.where(block < chosen, scaled, 0.0), 0)

    token = chosen * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(
        logits_ptr + row.to(tl.int64) * row_stride + token,
        mask=token < vocab,
        other=-float("inf"),
    ).to(tl.float32)
    weights = tl.exp((x - top) / temperature)
    running = before + tl.cumsum(weights, 0)
    past = (running > wanted) & (weights > 0)
    found = tl.min(tl.where(past, token, vocab), 0)
    # Rounding may point past the last token that can come.
    found = tl.where(found < vocab, found, likeliest)
    found = tl.where(given > 0, found, likeliest)
    # NaN is unequal to itself; what is no number is in every sum.
    sane = (total == total) & (total > 0) & (total < float("inf"))
    tl.store(out_ptr + row, tl.where(sane, found, failed))
