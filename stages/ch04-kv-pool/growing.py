"""What the growing tensors of step 0 cost, and what pages waste."""

import random
import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from minisgl.kvcache import MHAKVCache
from minisgl.utils import align_ceil
from tools.stagekit import measured

HEADS, DIM = 8, 128
TOKEN_BYTES = 2 * HEADS * DIM * 4


def grow(tokens: int) -> float:
    """Seconds to append `tokens` one by one with torch.cat."""
    k, v = torch.zeros(2, 0, HEADS, DIM)
    new_k, new_v = torch.ones(2, 1, HEADS, DIM)
    started = perf_counter()
    for _ in range(tokens):
        k, v = torch.cat([k, new_k]), torch.cat([v, new_v])
    return perf_counter() - started


def store(tokens: int) -> float:
    """Seconds to write them to slots of a pool."""
    cpu = torch.device("cpu")
    pool = MHAKVCache(HEADS, 1, DIM, tokens, 1, torch.float32, cpu)
    pool.k_cache(0).fill_(0), pool.v_cache(0).fill_(0)
    k, v = torch.ones(2, 1, HEADS * DIM)
    slots = torch.randperm(tokens).int().split(1)
    started = perf_counter()
    for slot in slots:
        pool.store_kv(k, v, slot, 0)
    return perf_counter() - started


def main() -> None:
    """Time both; then count the slots that uneven requests take."""
    torch.set_num_threads(1)
    print(f"one layer, {HEADS} kv heads of {DIM}, float32")
    print("tokens  written by cat  by store         cat       store")
    for tokens in (256, 512, 1024):
        by_cat = TOKEN_BYTES * tokens * (tokens + 1) / 2 / 2**20
        by_store = TOKEN_BYTES * tokens / 2**20
        cat_ms = 1e3 * min(grow(tokens) for _ in range(3))
        store_ms = 1e3 * min(store(tokens) for _ in range(3))
        print(
            f"{tokens:6}  {by_cat:10,.1f} MiB  {by_store:4.1f} MiB"
            f"  {measured(cat_ms, 'ms'):>10}  {measured(store_ms, 'ms'):>9}"
        )
    rng = random.Random(0)
    lengths = [rng.randint(1, 2048) for _ in range(64)]
    held = sum(lengths)
    print(f"\n64 requests of 1 to 2,048 tokens, {held:,} in all, take")
    full = 64 * 2048
    print(
        f"{full:8,} slots ({full / held:.3f} a token): 2,048 for each request"
    )
    for size in (256, 64, 16, 4, 1):
        taken = sum(align_ceil(length, size) for length in lengths)
        ratio = taken / held
        print(f"{taken:8,} slots ({ratio:.3f} a token): pages of {size}")


if __name__ == "__main__":
    main()
