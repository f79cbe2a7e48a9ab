"""Paged attention by FlashInfer: plan once a step, run in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from minisgl.attention.base import BaseAttnBackend, BaseAttnMetadata
from minisgl.attention.choice import Demand
from minisgl.attention.fi_prefill import (
    ENOUGH_TOKENS,
    PrefillWrappers,
    fix_place,
)
from minisgl.attention.recorded_prefill import RecordsPrefill
from minisgl.attention.stored import AttendsStored
from minisgl.attention.utils import BaseCaptureData
from minisgl.core import Batch, get_global_ctx
from minisgl.models import ModelConfig
from minisgl.utils import div_ceil
from minisgl.utils.counters import Counters, Ints
from minisgl.utils.device import new_event, to_device
from minisgl.utils.libraries import MissingLibrary, load_library

if TYPE_CHECKING:
    from flashinfer import (
        BatchDecodeWithPagedKVCacheWrapper,
        BatchPrefillWithPagedKVCacheWrapper,
        CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
    )

_WORKSPACE_BYTES = 128 << 20
"""Room for partial results of long sequences that several blocks share."""

_PLAN_BYTES = 8 << 20
"""Room for the plan of a recorded batch, as much as FlashInfer takes itself."""

_HEAD_DIMS = (64, 128, 256)


def why_not(demand: Demand) -> str | None:
    """Why FlashInfer cannot serve a GPU's halves; None if it can."""
    try:
        load_library("flashinfer")
    except MissingLibrary as error:
        return f"{error}; install flashinfer-python or use torch"
    head_dim = demand.config.head_dim
    if head_dim not in _HEAD_DIMS:
        known = ", ".join(map(str, _HEAD_DIMS))
        return (
            f"FlashInfer has kernels for a head_dim of {known}, not for "
            f"{head_dim}; use torch"
        )
    return None


@dataclass
class FIMetadata(BaseAttnMetadata):
    """A batch of B requests, as FlashInfer wants it told.

    cu_seqlens_q_cpu: int32 [B + 1], where each request's new tokens begin.
    cu_seqlens_q_gpu: the same on the device.
    cu_pages_cpu: int32 [B + 1], where each request's pages begin in `indices`.
    indices: int32 [pages], on the device, pages of all requests in turn.
    last_page_len_cpu: int32 [B], tokens in the last page of each, 1 or more.
    seq_lens_cpu: int32 [B], tokens of each, with the new ones.
    wrapper: FlashInfer's object that plans and runs this batch.
    initialized: whether it has planned it.
    whole: every sequence is a single block's for each kv head.
    """

    cu_seqlens_q_cpu: torch.Tensor
    cu_seqlens_q_gpu: torch.Tensor
    cu_pages_cpu: torch.Tensor
    indices: torch.Tensor
    last_page_len_cpu: torch.Tensor
    seq_lens_cpu: torch.Tensor
    wrapper: (
        BatchPrefillWithPagedKVCacheWrapper | BatchDecodeWithPagedKVCacheWrapper
    )
    initialized: bool = False
    whole: bool = False

    def get_last_indices(self, bs: int) -> torch.Tensor:
        return self.cu_seqlens_q_gpu[1 : 1 + bs] - 1


@dataclass
class FICaptureData(BaseCaptureData):
    """The tensors of `BaseCaptureData` in FlashInfer's words."""

    @property
    def one_tensor(self) -> torch.Tensor:
        """int32 [max_bs], tokens of the last pages; 1 until something else is."""
        return self.seq_lens

    @property
    def indices(self) -> torch.Tensor:
        """int32 [entries], the pages of all requests in turn."""
        return self.page_table.flatten()


class FlashInferBackend(BaseAttnBackend, RecordsPrefill, AttendsStored):
    """FlashInfer's kernels (Ye et al., arXiv:2501.01005), any page size."""

    def __init__(self, config: ModelConfig) -> None:
        from flashinfer import (
            BatchDecodeWithPagedKVCacheWrapper,
            BatchPrefillWithPagedKVCacheWrapper,
        )

        # Its engine's: metadata is made before that context is current again.
        self._ctx = get_global_ctx()
        pool = self._ctx.kv_cache
        self._qo_heads = config.num_qo_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self.float_workspace_buffer = torch.zeros(
            _WORKSPACE_BYTES, dtype=torch.uint8, device=pool.device
        )
        self.prefill_wrapper = BatchPrefillWithPagedKVCacheWrapper(
            self.float_workspace_buffer, "NHD", backend="fa2"
        )
        self.decode_wrapper = BatchDecodeWithPagedKVCacheWrapper(
            self.float_workspace_buffer,
            "NHD",
            use_tensor_cores=self.use_tensor_cores,
        )
        self._plan_copied = new_event(pool.device)

    @cached_property
    def use_tensor_cores(self) -> bool:
        """Whether decoding is a matrix product worth their while.

        With one new token a request, the queries that share a kv head are all
        the rows there are. From 4 on FlashInfer's kernel for prefill decodes
        faster than the one for decode, which lacks most of these group sizes.
        """
        return self._qo_heads // self._kv_heads >= 4

    def _tensor_cores_for(self, size: int) -> bool:
        """The same for a recorded batch of `size` requests.

        From about 64 on, the kernel for prefill keeps more of the memory busy
        with 2 queries a kv head, too; tools/bench_levers.py says by how much.
        """
        enough = size >= 64 and self._qo_heads // self._kv_heads >= 2
        return self.use_tensor_cores or enough

    def _splits(self, size: int) -> bool:
        """Whether a recorded batch shares long sequences among blocks.

        It does so in every replay or in none, and partial results cost another
        kernel. From about 64 requests on there are blocks enough without, as
        long as none can keep the others waiting.
        """
        enough = size >= 64 and self._tensor_cores_for(size)
        return self._longest > 4096 or not enough

    def prepare_metadata(self, batch: Batch) -> None:
        page_size, table = self._ctx.page_size, self._ctx.page_table
        rows, cached, lengths = Counters.of(batch.padded_reqs)
        pages = (lengths + page_size - 1) // page_size
        parts = [
            _cumulate(lengths - cached),
            _cumulate(pages),
            lengths - (pages - 1) * page_size,
            lengths,
        ]
        packed = torch.from_numpy(np.concatenate(parts, dtype=np.int32))
        host = _pinned(packed, table.device)
        cu_seqlens_q, cu_pages, last_page, seq_lens = host.split(
            [len(part) for part in parts]
        )
        on_host = torch.from_numpy(rows), torch.from_numpy(pages)
        wrappers = self.decode_wrapper, self.prefill_wrapper
        batch.attn_metadata = FIMetadata(
            cu_seqlens_q_cpu=cu_seqlens_q,
            cu_seqlens_q_gpu=to_device(cu_seqlens_q, torch.int32, table.device),
            cu_pages_cpu=cu_pages,
            indices=gather_pages(table, *on_host, page_size),
            last_page_len_cpu=last_page,
            seq_lens_cpu=seq_lens,
            wrapper=wrappers[batch.is_prefill],
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
        return self.attend(q, layer_id, batch)

    def attend(
        self, q: torch.Tensor, layer_id: int, batch: Batch
    ) -> torch.Tensor:
        pool, metadata = self._ctx.kv_cache, batch.attn_metadata
        assert isinstance(metadata, FIMetadata)
        self._initialize_metadata_once(metadata)
        cache = (pool.k_cache(layer_id), pool.v_cache(layer_id))
        out: torch.Tensor = metadata.wrapper.run(q, cache)
        return out

    def init_capture_graph(self, max_seq_len: int, bs_list: list[int]) -> None:
        device = self._ctx.page_table.device
        pages = div_ceil(max_seq_len, self._ctx.page_size)
        self._longest = max_seq_len
        self._capture = FICaptureData.create(max(bs_list), pages, device)
        # A plan is read before the next one is written: one place for all.
        self._graph_plans = torch.zeros(
            _PLAN_BYTES, dtype=torch.uint8, device=device
        )
        self._graph_wrappers: dict[
            int, CUDAGraphBatchDecodeWithPagedKVCacheWrapper
        ] = {}

    def init_prefill_graphs(
        self, max_seq_len: int, requests: int, sizes: Sequence[int]
    ) -> list[int]:
        self._prefill_graphs = PrefillWrappers(
            (self.float_workspace_buffer, self._graph_plans),
            (self._qo_heads, self._kv_heads, self._head_dim),
            div_ceil(max_seq_len, self._ctx.page_size),
            requests,
        )
        return self._prefill_graphs.fitting(sizes)

    def prepare_for_capture(self, batch: Batch) -> None:
        if batch.is_prefill:
            self._prefill_graphs.add(len(batch.input_ids))
            cu_seqlens_q = self._prefill_graphs.capture.cu_seqlens_q
        else:
            size = batch.padded_size
            self._graph_wrappers[size] = self._decode_wrapper(size)
            cu_seqlens_q = self._capture.cu_seqlens_q[: size + 1]
        self.prepare_metadata(batch)
        self.prepare_for_replay(batch)
        assert isinstance(batch.attn_metadata, FIMetadata)
        batch.attn_metadata.cu_seqlens_q_gpu = cu_seqlens_q

    def _decode_wrapper(
        self, size: int
    ) -> CUDAGraphBatchDecodeWithPagedKVCacheWrapper:
        """That of recorded decode batches of `size` requests."""
        from flashinfer import CUDAGraphBatchDecodeWithPagedKVCacheWrapper

        wrapper = CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
            self.float_workspace_buffer,
            self._capture.cu_seqlens_k[: size + 1],
            self._capture.indices,
            self._capture.one_tensor[:size],
            "NHD",
            use_tensor_cores=self._tensor_cores_for(size),
        )
        fix_place(wrapper, self.float_workspace_buffer, self._graph_plans)
        return wrapper

    def prepare_for_replay(self, batch: Batch) -> None:
        metadata, size = batch.attn_metadata, batch.padded_size
        assert isinstance(metadata, FIMetadata)
        if batch.is_prefill:
            tokens = len(batch.input_ids)
            metadata.wrapper = self._prefill_graphs[tokens]
            metadata.whole = tokens >= ENOUGH_TOKENS
        else:
            metadata.wrapper = self._graph_wrappers[size]
            metadata.whole = not self._splits(size)
        # The plan copies the metadata into the wrapper's fixed tensors.
        self._initialize_metadata_once(metadata)

    def _initialize_metadata_once(self, metadata: FIMetadata) -> None:
        """Plan a batch in its first layer.

        Not in `prepare_metadata`: a plan is written to memory of the wrapper
        that the batch before, still running, reads. Here the stream has put
        the writing after it.
        """
        if metadata.initialized:
            return
        metadata.initialized = True
        # The plan before may still be on its way out of the host's buffer.
        self._plan_copied.synchronize()
        shared = {
            "num_qo_heads": self._qo_heads,
            "num_kv_heads": self._kv_heads,
            "page_size": self._ctx.page_size,
            "q_data_type": self._ctx.kv_cache.dtype,
            "kv_data_type": self._ctx.kv_cache.dtype,
            "seq_lens": metadata.seq_lens_cpu,
        }
        if isinstance(metadata.wrapper, type(self.prefill_wrapper)):
            metadata.wrapper.plan(
                qo_indptr=metadata.cu_seqlens_q_cpu,
                paged_kv_indptr=metadata.cu_pages_cpu,
                paged_kv_indices=metadata.indices,
                paged_kv_last_page_len=metadata.last_page_len_cpu,
                head_dim_qk=self._head_dim,
                causal=True,
                disable_split_kv=metadata.whole,
                **shared,
            )
        else:
            metadata.wrapper.plan(
                indptr=metadata.cu_pages_cpu,
                indices=metadata.indices,
                last_page_len=metadata.last_page_len_cpu,
                head_dim=self._head_dim,
                disable_split_kv=metadata.whole,
                **shared,
            )
        self._plan_copied.record()


def gather_pages(
    page_table: torch.Tensor,
    rows: torch.Tensor,
    counts: torch.Tensor,
    page_size: int,
) -> torch.Tensor:
    """The first counts[i] pages of row rows[i], for one i after another.

    page_table: int32 [rows, length] of slots, on the device.
    rows, counts: int64 [B] on the host. Returns int32 [sum(counts)].
    """
    device, total = page_table.device, int(counts.sum())
    before = counts.cumsum(0) - counts
    packed = torch.stack([rows, counts, before])
    rows, counts, before = to_device(packed, torch.int64, device)
    # Told the sum, the device need not be asked for it.
    owner = torch.repeat_interleave(counts, output_size=total)
    page = torch.arange(total, device=device) - before[owner]
    return page_table[rows[owner], page * page_size] // page_size


def _cumulate(counts: Ints) -> Ints:
    """[B] -> [B + 1]: 0, and the sums so far."""
    return np.concatenate([[0], counts.cumsum()])


def _pinned(data: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Host memory from which a GPU can fetch on its own."""
    return data.pin_memory() if device.type == "cuda" else data
