"""A model without an engine: whole prompts in, the logits that follow them out.

Works at every chapter. From ch04 on a context needs a pool of KV pages, from ch05
on an attention backend; a test of the model alone does not want to know.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from minisgl.core import Batch, Context
from minisgl.models import (
    BaseLLMModel,
    ModelConfig,
    create_model,
    load_model_weight,
)
from minisgl.utils import cached_load_hf_config, torch_dtype
from tests.handmade import make_batch, make_req

CPU = torch.device("cpu")


def load_bare(
    folder: str | Path, dtype: torch.dtype = torch.float32
) -> tuple[BaseLLMModel, ModelConfig]:
    """The model of a folder with its weights, and what config.json says of it."""
    config = ModelConfig.from_hf(cached_load_hf_config(str(folder)))
    with torch.device("meta"), torch_dtype(dtype):
        model = create_model(config)
    load_model_weight(model, str(folder), CPU, dtype)
    return model, config


def last_logits(
    model: BaseLLMModel, config: ModelConfig, prompts: Sequence[Sequence[int]]
) -> torch.Tensor:
    """One batch of whole prompts: float [prompts, vocab], what follows each."""
    reqs = [make_req(ids, row, 1) for row, ids in enumerate(prompts)]
    if find_spec("minisgl.kvcache") is None:
        ctx, batch = Context(), make_batch(reqs, "prefill", None)
    else:
        ctx, batch = _with_pool(config, reqs, _dtype(model))
    with torch.inference_mode(), ctx.forward_batch(batch):
        logits = model.forward()
    if len(logits) == len(reqs):
        return logits
    ends = torch.tensor([len(ids) for ids in prompts]).cumsum(0) - 1
    return logits[ends]


def _dtype(model: BaseLLMModel) -> torch.dtype:
    return next(iter(model.state_dict().values())).dtype


def _with_pool(
    config: ModelConfig, reqs: list, dtype: torch.dtype
) -> tuple[Any, Batch]:
    """A context in which every request has the pages it needs, one token each."""
    longest = max(req.device_len for req in reqs)
    pages = len(reqs) * longest
    ctx = Context(page_size=1)
    ctx.kv_cache = import_module("minisgl.kvcache").create_kvcache_pool(
        config, pages, 1, dtype, CPU
    )
    table = torch.arange(pages, dtype=torch.int32)
    ctx.page_table = table.view(len(reqs), longest)
    batch = make_batch(reqs, "prefill", ctx)
    if find_spec("minisgl.attention") is not None:
        attention = import_module("minisgl.attention")
        core = import_module("minisgl.core")
        core.set_global_ctx(ctx)
        ctx.attn_backend = attention.create_attention_backend("torch", config)
        ctx.attn_backend.prepare_metadata(batch)
    if find_spec("minisgl.moe") is not None:
        moe = import_module("minisgl.moe")
        ctx.moe_backend = moe.create_moe_backend("torch")
    return ctx, batch
