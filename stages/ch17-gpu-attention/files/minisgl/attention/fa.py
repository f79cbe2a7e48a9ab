"""Paged attention by flash-attn: the kernel reads the page table itself."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import torch
import torch.nn.functional as F

from minisgl.attention.base import BaseAttnBackend, BaseAttnMetadata
from minisgl.attention.choice import Demand
from minisgl.core import Batch, get_global_ctx
from minisgl.models import ModelConfig
from minisgl.utils import is_sm90_supported, is_sm100_supported
from minisgl.utils.device import to_device
from minisgl.utils.libraries import MissingLibrary, has_library, load_library

# Version 3 has kernels for one generation, Hopper. Two packages bring it.
_VERSION3 = ("flash_attn_interface", "sgl_kernel.flash_attn")


class FlashAttn(NamedTuple):
    """flash-attn as it is installed: two versions, with unlike interfaces."""

    version: int
    module: ModuleType


def find_library() -> FlashAttn:
    """Version 3 if this GPU can run it and it is here, else version 2.

    Raises:
        MissingLibrary: neither is here.
    """
    if is_sm90_supported() and not is_sm100_supported():
        for name in filter(has_library, _VERSION3):
            return FlashAttn(3, load_library(name))
    return FlashAttn(2, load_library("flash_attn"))


def why_not(demand: Demand) -> str | None:
    """Why flash-attn cannot serve a GPU's halves; None if it can."""
    try:
        version = find_library().version
    except MissingLibrary as error:
        return f"{error}; install flash-attn or use fi"
    head_dim, page_size = demand.config.head_dim, demand.page_size
    if head_dim % 8 or head_dim > 256:
        return (
            "flash-attn has kernels for a head_dim up to 256 that 8 divides, "
            f"not for {head_dim}; use torch"
        )
    if version == 2 and page_size % 256:
        return (
            "flash-attn 2 reads pages of 256 tokens or a multiple of that, "
            f"page_size is {page_size}; set it to 256 or use fi"
        )
    return None


@dataclass
class FAMetadata(BaseAttnMetadata):
    """A batch of B requests, as flash-attn wants it told.

    cu_seqlens_k, cu_seqlens_q: int32 [B + 1], where each request begins if
        all tokens follow one another, and if only the new ones do.
    cache_seqlens: int32 [B], tokens of each request, with the new ones.
    max_seqlen_k, max_seqlen_q: the longest request, and most new tokens.
    page_table: int32 [B, n], the pages of each request. Nobody reads what
        stands past its last one.
    """

    cu_seqlens_k: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cache_seqlens: torch.Tensor
    max_seqlen_k: int
    max_seqlen_q: int
    page_table: torch.Tensor

    def get_last_indices(self, bs: int) -> torch.Tensor:
        return self.cu_seqlens_q[1 : 1 + bs] - 1


class FlashAttentionBackend(BaseAttnBackend):
    """FlashAttention (Dao, arXiv:2307.08691; Shah et al., arXiv:2407.08608)."""

    def __init__(self, config: ModelConfig) -> None:
        # Its engine's: metadata is made before that context is current again.
        self._ctx = get_global_ctx()
        self.version, self._library = find_library()

    def prepare_metadata(self, batch: Batch) -> None:
        reqs, page_size = batch.reqs, self._ctx.page_size
        table = self._ctx.page_table
        lengths = torch.tensor([req.device_len for req in reqs])
        new = torch.tensor([req.extend_len for req in reqs])
        rows = torch.tensor([req.table_idx for req in reqs])
        # One copy to the device carries them all.
        parts = [lengths.cumsum(0), new.cumsum(0), lengths, rows]
        padded = torch.stack([F.pad(part, (1, 0)) for part in parts])
        on_device = to_device(padded, torch.int32, table.device)
        longest = int(lengths.max())
        firsts = table[:, :longest:page_size].index_select(0, on_device[3, 1:])
        batch.attn_metadata = FAMetadata(
            cu_seqlens_k=on_device[0],
            cu_seqlens_q=on_device[1],
            cache_seqlens=on_device[2, 1:],
            max_seqlen_k=longest,
            max_seqlen_q=int(new.max()),
            page_table=firsts // page_size,
        )

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer_id: int,
        batch: Batch,
    ) -> torch.Tensor:
        pool = self._ctx.kv_cache
        pool.store_kv(k.flatten(1), v.flatten(1), batch.out_loc, layer_id)
        metadata = batch.attn_metadata
        assert isinstance(metadata, FAMetadata)
        attend = _attend_v3 if self.version == 3 else _attend_v2
        keys, values = pool.k_cache(layer_id), pool.v_cache(layer_id)
        return attend(self._library, q, keys, values, metadata)


def _attend_v3(
    library: ModuleType,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: FAMetadata,
) -> torch.Tensor:
    """One call for every batch: it takes paged keys and uneven queries."""
    out: torch.Tensor = library.flash_attn_with_kvcache(
        q,
        k_cache,
        v_cache,
        cache_seqlens=metadata.cache_seqlens,
        page_table=metadata.page_table,
        cu_seqlens_q=metadata.cu_seqlens_q,
        max_seqlen_q=metadata.max_seqlen_q,
        causal=True,
    )
    return out


def _attend_v2(
    library: ModuleType,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: FAMetadata,
) -> torch.Tensor:
    """Uneven queries need another function than one new token each."""
    out: torch.Tensor
    if metadata.max_seqlen_q == 1:
        out = library.flash_attn_with_kvcache(
            q.unsqueeze(1),
            k_cache,
            v_cache,
            cache_seqlens=metadata.cache_seqlens,
            block_table=metadata.page_table,
            causal=True,
        )
        return out.squeeze(1)
    out = library.flash_attn_varlen_func(
        q,
        k_cache,
        v_cache,
        metadata.cu_seqlens_q,
        metadata.cu_seqlens_k,
        metadata.max_seqlen_q,
        metadata.max_seqlen_k,
        causal=True,
        block_table=metadata.page_table,
    )
    return out
