"""One batch, in the words in which each library wants to be told of it."""

from collections.abc import Iterable, Iterator

import torch

from minisgl.attention import BaseAttnBackend, Demand, choose_attn_backend
from minisgl.attention.fa import FAMetadata
from minisgl.attention.fi import FIMetadata
from minisgl.core import Context, set_global_ctx
from minisgl.kvcache import create_kvcache_pool
from minisgl.models import ModelConfig
from tests.handmade import make_batch, make_req

PAGE_SIZE = 4
PAGES = {"A": [5, 2], "B": [0, 3, 7], "C": [1, 6, 4]}
SPANS = {"A": (0, 6), "B": (9, 11), "C": (8, 9)}


def make(config: ModelConfig, dtype: torch.dtype, device: str) -> Context:
    """A pool of 8 pages, and a row of the page table for A, B and C."""
    ctx, where = Context(PAGE_SIZE), torch.device(device)
    set_global_ctx(ctx)
    ctx.kv_cache = create_kvcache_pool(config, 8, PAGE_SIZE, dtype, where)
    table = torch.zeros(3, 16, dtype=torch.int32)
    for row, pages in enumerate(PAGES.values()):
        slots = torch.tensor(pages).unsqueeze(1) * PAGE_SIZE
        slots = (slots + torch.arange(PAGE_SIZE)).flatten()
        table[row, : len(slots)] = slots.int()
    ctx.page_table = table.to(where)
    return ctx


def lines(backend: BaseAttnBackend, ctx: Context) -> Iterator[str]:
    """What the backend makes of A, B and C in one batch, a line each."""
    reqs = []
    for row, (cached, total) in enumerate(SPANS.values()):
        reqs.append(make_req([7] * total, row, 1))
        reqs[-1].cached_len = cached
    batch = make_batch(reqs, "prefill", ctx)
    backend.prepare_metadata(batch)
    data = batch.attn_metadata
    if isinstance(data, FIMetadata):
        yield f"cu_seqlens_q   {_row(data.cu_seqlens_q_cpu)}"
        yield f"cu_pages       {_row(data.cu_pages_cpu)}"
        yield f"indices        {_row(data.indices)}"
        yield f"last_page_len  {_row(data.last_page_len_cpu)}"
    elif isinstance(data, FAMetadata):
        yield f"cu_seqlens_q   {_row(data.cu_seqlens_q)}"
        yield f"cache_seqlens  {_row(data.cache_seqlens)}"
        for row, name in zip(data.page_table.tolist(), PAGES, strict=True):
            held = len(PAGES[name])
            shown = row[:held] + ["?"] * (len(row) - held)
            yield f"page_table {name}   {_row(shown)}"


def refusal(backend: str, demand: Demand) -> str:
    """Why that backend cannot serve, as the engine says it at the start."""
    try:
        return f"{choose_attn_backend(backend, demand)} is accepted"
    except ValueError as error:
        return str(error)


def _row(numbers: torch.Tensor | Iterable[object]) -> str:
    values = numbers.tolist() if torch.is_tensor(numbers) else numbers
    return " ".join(map(str, values))
