"""One decode step's attention: a loop over requests against padded groups."""

import random
import sys
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from minisgl.attention import create_attention_backend
from minisgl.core import Batch, Context, Req, set_global_ctx
from minisgl.kvcache import MHAKVCache
from tests.handmade import make_req
from tools.stagekit import measured

HEADS, KV_HEADS, DIM = 4, 2, 64


def setup(lengths: list[int]) -> tuple[Context, list[Req]]:
    """A context with a pool of one layer, and requests that decode."""
    ctx = Context(page_size=1)
    longest, cpu = max(lengths), torch.device("cpu")
    slots = torch.randperm(len(lengths) * longest).int()
    ctx.page_table = slots.view(len(lengths), longest)
    ctx.kv_cache = MHAKVCache(
        KV_HEADS, 1, DIM, len(slots), 1, torch.float32, cpu
    )
    set_global_ctx(ctx)
    shape: Any = SimpleNamespace(num_qo_heads=HEADS, num_kv_heads=KV_HEADS)
    reqs = []
    for row, length in enumerate(lengths):
        req = make_req([0] * length, row, 1)
        req.cached_len = length - 1
        reqs.append(req)
    ctx.attn_backend = create_attention_backend("torch", shape)
    return ctx, reqs


def run(ctx: Context, batches: list[list[Req]]) -> float:
    """Processor time of the best of a hundred rounds over `batches`, in ms."""
    prepared, backend = [], ctx.attn_backend
    for reqs in batches:
        batch = Batch(reqs, "decode")
        batch.positions = torch.tensor([r.cached_len for r in reqs])
        at = torch.tensor([r.table_idx for r in reqs]), batch.positions
        batch.out_loc = ctx.page_table[at]
        backend.prepare_metadata(batch)
        q = torch.randn(len(reqs), HEADS, DIM)
        prepared.append((q, torch.randn(2, len(reqs), KV_HEADS, DIM), batch))
    times = []
    for _ in range(100):
        started = process_time()
        for q, (k, v), batch in prepared:
            backend.forward(q, k, v, 0, batch)
        times.append(1e3 * (process_time() - started))
    return min(times)


def main() -> None:
    """Even and uneven lengths, short and long ones."""
    torch.set_num_threads(1)
    print("requests  lengths   padding      loop     groups")
    rng = random.Random(0)
    for count in (4, 16, 64):
        for longest in (16, 256):
            for least in (longest, 1):
                lengths = [rng.randint(least, longest) for _ in range(count)]
                ctx, reqs = setup(lengths)
                waste = 1 - sum(lengths) / (count * max(lengths))
                loop = run(ctx, [[req] for req in reqs])
                groups = run(ctx, [reqs])
                label = f"{least}-{longest}"
                print(
                    f"{count:8}  {label:8}  {waste:6.1%}"
                    f"  {measured(loop, 'ms', 2):>9}"
                    f"  {measured(groups, 'ms', 2):>9}"
                )


if __name__ == "__main__":
    main()
