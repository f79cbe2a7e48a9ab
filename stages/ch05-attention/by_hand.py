"""A model over a KV pool, stepped by hand: the engine takes this over in ch06."""

from pathlib import Path

import torch

from minisgl.attention import create_attention_backend
from minisgl.core import Batch, Context, Req, SamplingParams, set_global_ctx
from minisgl.kvcache import create_kvcache_pool
from minisgl.layers import set_rope_device
from minisgl.models import ModelConfig, create_model, load_model_weight
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.table import TableManager
from minisgl.utils import (
    align_ceil,
    cached_load_hf_config,
    pick_device,
    torch_dtype,
)


class ByHand:
    """Float32 model of the folder `path`, a pool, a backend and rows."""

    def __init__(
        self, path: Path, pages: int, page_size: int, rows: int, device: str
    ) -> None:
        where, dtype, length = pick_device(device), torch.float32, 128
        config = ModelConfig.from_hf(cached_load_hf_config(str(path)))
        set_rope_device(where)
        with torch.device("meta"), torch_dtype(dtype):
            self.model = create_model(config)
        load_model_weight(self.model, str(path), where, dtype)
        self.ctx = Context(page_size)
        set_global_ctx(self.ctx)
        self.ctx.kv_cache = create_kvcache_pool(
            config, pages, page_size, dtype, where
        )
        # Whole pages fit in a row.
        size = (rows, align_ceil(length, page_size))
        page_table = torch.zeros(size, dtype=torch.int32, device=where)
        self.ctx.page_table = page_table
        self.ctx.attn_backend = create_attention_backend("torch", config)
        self.table = TableManager(rows, page_table)
        self.pages = CacheManager(pages, page_size, page_table)

    def join(self, ids: list[int], max_tokens: int) -> Req:
        """A request with a row, and its prompt in the token pool."""
        row = self.table.allocate()
        prompt = torch.tensor(ids, dtype=torch.int32)
        self.table.token_pool[row, : len(ids)] = prompt
        params = SamplingParams(max_tokens=max_tokens)
        return Req(prompt, row, 0, max_tokens, row, params)

    def step(self, reqs: list[Req]) -> Batch:
        """Compute what is new in `reqs` and append each one's likeliest token."""
        self.pages.allocate_paged(reqs)
        batch = self._batch(reqs)
        self.ctx.attn_backend.prepare_metadata(batch)
        with torch.inference_mode(), self.ctx.forward_batch(batch):
            best = self.model.forward().argmax(-1).int()
        for req, token in zip(reqs, best, strict=True):
            req.complete_one()
            req.append_host(token.cpu().view(1))
            self.table.token_pool[req.table_idx, req.cached_len] = token
        return batch

    def _batch(self, reqs: list[Req]) -> Batch:
        """Row and place of every new token, and what is found there."""
        rows, places = [], []
        for req in reqs:
            rows += [req.table_idx] * req.extend_len
            places += range(req.cached_len, req.device_len)
        at = torch.tensor([rows, places], device=self.table.page_table.device)
        batch = Batch(reqs, "prefill")
        batch.input_ids = self.table.token_pool[at[0], at[1]]
        batch.positions = at[1].int()
        batch.out_loc = self.table.page_table[at[0], at[1]]
        return batch
