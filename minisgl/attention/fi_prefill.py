"""FlashInfer's wrappers for recorded prefill batches, one a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from minisgl.attention.utils import BaseCaptureData
from minisgl.utils import div_ceil

if TYPE_CHECKING:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

_TILE = 128
"""The most rows of queries, a kv head, that a block takes."""

ENOUGH_TOKENS = 512
"""New tokens from which on there are blocks enough without sharing sequences.
To merge what was shared takes longer, the more there are."""


def plan_nothing(wrapper: Any) -> None:
    """Zeros where FlashInfer makes plans: every block has work of request 0.

    A recording launches all the blocks that any plan may need. Where sequences
    are not shared, those that a plan leaves out are not told so, and do what
    stands there: something once more, or, in used memory, something anywhere.
    """
    wrapper._pin_memory_int_workspace_buffer.zero_()


def fix_place(wrapper: Any, results: torch.Tensor, plans: torch.Tensor) -> None:
    """Make what a wrapper plans lie where recordings look for it.

    results, plans: uint8, on the device; all recordings have the same.
    """
    wrapper.reset_workspace_buffer(results, plans)
    plan_nothing(wrapper)


class PrefillWrappers:
    """Plans prefill batches at addresses that stay.

    All of them read the same tensors, for only one runs at a time, and it is
    planned just before.

    buffers: uint8, where partial results go, which limits the sizes; and where
        plans go.
    heads: of queries, and of keys; and their dimension.
    pages: of the longest request.
    requests: of every batch.
    """

    def __init__(
        self,
        buffers: tuple[torch.Tensor, torch.Tensor],
        heads: tuple[int, int, int],
        pages: int,
        requests: int,
    ) -> None:
        self._buffers, self._heads, self._requests = buffers, heads, requests
        device = buffers[0].device
        self.capture = BaseCaptureData.create(requests, pages, device)
        self._wrappers: dict[int, BatchPrefillWithPagedKVCacheWrapper] = {}

    def fitting(self, sizes: Sequence[int]) -> list[int]:
        """The sizes whose partial results there is room for."""
        room = len(self._buffers[0])
        return [
            size
            for size in sizes
            if size >= ENOUGH_TOKENS or self._partials(size) <= room
        ]

    def _partials(self, tokens: int) -> int:
        """Bytes of float32 values and sums of each block that there may be.

        Two blocks a multiprocessor share the work, or as many as have rows.
        """
        qo_heads, kv_heads, head_dim = self._heads
        rows = tokens * (qo_heads // kv_heads)
        blocks = max(
            2 * _multiprocessors(self._buffers[0].device) // kv_heads,
            div_ceil(rows, _TILE) + self._requests - 1,
        )
        return 4 * qo_heads * blocks * _TILE * (head_dim + 1)

    def add(self, tokens: int) -> None:
        """Make the wrapper for batches of so many tokens."""
        from flashinfer import BatchPrefillWithPagedKVCacheWrapper

        wrapper = BatchPrefillWithPagedKVCacheWrapper(
            self._buffers[0],
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=self.capture.cu_seqlens_q,
            paged_kv_indptr_buf=self.capture.cu_seqlens_k,
            paged_kv_indices_buf=self.capture.page_table.flatten(),
            paged_kv_last_page_len_buf=self.capture.seq_lens,
            backend="fa2",
        )
        fix_place(wrapper, *self._buffers)
        self._wrappers[tokens] = wrapper

    def __getitem__(self, tokens: int) -> BatchPrefillWithPagedKVCacheWrapper:
        return self._wrappers[tokens]


def _multiprocessors(device: torch.device) -> int:
    """Of a GPU; where there is none, those of an H200."""
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count
