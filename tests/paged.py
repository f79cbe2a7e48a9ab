"""Generation through the KV pool by hand: pages, steps, the next token.

Works at every chapter from ch04 on. There the model gives the logits of every token
of a batch, from ch05 on those of each request's last one; `Paged.step` always
returns the latter.
"""

import functools
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from minisgl.core import Context, Req, set_global_ctx
from minisgl.kvcache import BaseKVCachePool, create_kvcache_pool
from minisgl.models import BaseLLMModel, ModelConfig
from minisgl.scheduler.cache import CacheManager
from minisgl.utils import align_ceil
from tests.bare_model import load_bare
from tests.handmade import Phase, finish_step, make_batch, make_req

CPU = torch.device("cpu")


@functools.lru_cache(maxsize=4)
def load_once(folder: Path) -> tuple[BaseLLMModel, ModelConfig]:
    return load_bare(folder)


def attach_backend(ctx: Context, config: ModelConfig) -> None:
    """From ch05 on a context needs a backend; `ctx` becomes the current one."""
    set_global_ctx(ctx)
    if find_spec("minisgl.attention") is not None:
        attention = import_module("minisgl.attention")
        ctx.attn_backend = attention.create_attention_backend("torch", config)


class Paged:
    """A model over a pool of its own, stepped by hand.

    Args:
        pages: how many; every row of the page table has `length` tokens at most.
        pool: in place of a `MHAKVCache` of that size.
        shuffle: give every row pages from a seeded permutation of the pool, in
            place of those that a `CacheManager` allocates.
    """

    def __init__(
        self,
        folder: Path,
        page_size: int,
        pages: int = 256,
        *,
        length: int = 256,
        rows: int = 8,
        pool: BaseKVCachePool | None = None,
        shuffle: int | None = None,
    ) -> None:
        self.model, self.config = load_once(folder)
        self.ctx = Context(page_size)
        self.pool = pool or create_kvcache_pool(
            self.config, pages, page_size, torch.float32, CPU
        )
        self.ctx.kv_cache = self.pool
        size = (rows, align_ceil(length, page_size))
        self.ctx.page_table = torch.zeros(size, dtype=torch.int32)
        attach_backend(self.ctx, self.config)
        self.manager = CacheManager(pages, page_size, self.ctx.page_table)
        self.shuffled = shuffle is not None
        if self.shuffled:
            rng = torch.Generator().manual_seed(shuffle)
            drawn = torch.randperm(pages, generator=rng).unsqueeze(1)
            slots = drawn * page_size + torch.arange(page_size)
            self.ctx.page_table[:] = slots.flatten()[: rows * size[1]].view(
                size
            )

    def step(self, reqs: list[Req], phase: Phase = "decode") -> torch.Tensor:
        """Run one batch and move its requests on: logits [requests, vocab]."""
        set_global_ctx(self.ctx)
        if not self.shuffled:
            self.manager.allocate_paged(reqs)
        batch = make_batch(reqs, phase, self.ctx)
        if hasattr(self.ctx, "attn_backend"):
            self.ctx.attn_backend.prepare_metadata(batch)
        lengths = torch.tensor([req.extend_len for req in reqs])
        with torch.inference_mode(), self.ctx.forward_batch(batch):
            logits = self.model.forward()
        if len(logits) != len(reqs):
            logits = logits[lengths.cumsum(0) - 1]
        finish_step(batch, logits.argmax(-1).tolist())
        return logits

    def alone(self, ids: Sequence[int], row: int, tokens: int) -> torch.Tensor:
        """A request by itself: the logits of `tokens` steps, [tokens, vocab]."""
        req = make_req(ids, row, tokens)
        steps = [self.step([req], "prefill")]
        steps += [self.step([req]) for _ in range(tokens - 1)]
        return torch.cat(steps)


def answer(req: Req) -> list[int]:
    """The tokens generated so far."""
    return req.input_ids[req.max_device_len - req.output_len :].tolist()
