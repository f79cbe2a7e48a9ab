"""The nouns of the engine: a request, a batch, and the context of a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from minisgl.sampling_params import SamplingParams
from minisgl.utils.growing import GrowingIds

if TYPE_CHECKING:
    from minisgl.attention import BaseAttnBackend, BaseAttnMetadata
    from minisgl.kvcache import BaseCacheHandle, BaseKVCachePool
    from minisgl.moe import BaseMoeBackend

__all__ = [
    "Batch",
    "Context",
    "Req",
    "SamplingParams",
    "get_global_ctx",
    "set_global_ctx",
]


@dataclass(eq=False)
class Req:
    """One sequence being generated; equal only to itself, so usable in sets.

    Three counters describe it, and they never pass one another:

        0 <= cached_len < device_len <= max_device_len

    cached_len: tokens whose keys and values are in the cache.
    device_len: tokens the device has, or will have once the running step ends.
    max_device_len: prompt plus everything it may generate.

    input_ids: int32 [len] on the CPU, the prompt and what the host has read.
    table_idx: the row of the page table and of the token pool it holds.
    output_len: most tokens to generate.
    uid: the number by which the caller knows it.
    cache_handle: the prefix it has locked in the prefix cache.
    """

    input_ids: torch.Tensor
    table_idx: int
    cached_len: int
    output_len: int
    uid: int
    sampling_params: SamplingParams
    cache_handle: BaseCacheHandle

    def __post_init__(self) -> None:
        self.device_len = len(self.input_ids)
        self.max_device_len = self.device_len + self.output_len
        assert 0 <= self.cached_len < self.device_len <= self.max_device_len

    @property
    def remain_len(self) -> int:
        """Tokens it may still generate."""
        return self.max_device_len - self.device_len

    @property
    def extend_len(self) -> int:
        """Tokens the next step must compute."""
        return self.device_len - self.cached_len

    def complete_one(self) -> None:
        """Account for a step: all it computed is cached, one token is new."""
        self.cached_len = self.device_len
        self.device_len += 1

    def append_host(self, next_token: torch.Tensor) -> None:
        """Add a generated token, int32 [1] on the CPU, to what the host knows."""
        _INPUT_IDS.grow(self, int(next_token.item()))

    @property
    def can_decode(self) -> bool:
        """Whether another token may follow."""
        return self.remain_len > 0

    def __repr__(self) -> str:
        return (
            f"Req(uid={self.uid}, row={self.table_idx}, "
            f"cached={self.cached_len}, device={self.device_len}, "
            f"max={self.max_device_len})"
        )


# Set here, for in the class it would look like a default.
_INPUT_IDS = GrowingIds("input_ids")
Req.input_ids = _INPUT_IDS  # type: ignore[assignment]


@dataclass
class Batch:
    """The requests of one step, with the tensors of that step.

    A batch is flat: the tokens of all requests follow one another, without
    padding. With T tokens in the step,

    input_ids: int32 [T], the tokens to compute.
    positions: int [T], where each stands in its own sequence.
    out_loc: int32 [T], the slots of the KV pool that receive their keys.
    attn_metadata: what the attention backend prepared for this step.
    padded_reqs: the requests, and dummies after them up to a size that has been
        recorded. The tensors are theirs; results are of the requests only.
    """

    reqs: list[Req]
    phase: Literal["prefill", "decode"]
    input_ids: torch.Tensor = field(init=False)
    positions: torch.Tensor = field(init=False)
    out_loc: torch.Tensor = field(init=False)
    attn_metadata: BaseAttnMetadata = field(init=False)
    padded_reqs: list[Req] = field(init=False)

    def __post_init__(self) -> None:
        self.padded_reqs = self.reqs

    @property
    def is_prefill(self) -> bool:
        return self.phase == "prefill"

    @property
    def is_decode(self) -> bool:
        return self.phase == "decode"

    @property
    def size(self) -> int:
        """Number of requests."""
        return len(self.reqs)

    @property
    def padded_size(self) -> int:
        """Number of requests, dummies included."""
        return len(self.padded_reqs)


@dataclass
class Context:
    """What layers need to know of the step and cannot be told by argument.

    page_size: tokens a page of the KV pool holds.
    page_table: int32 [rows, length]; the pool slot of every token by request
        row and position.
    kv_cache: the KV pool.
    attn_backend: what computes attention over it.
    moe_backend: what computes layers of experts, if the model has any.
    """

    page_size: int
    page_table: torch.Tensor = field(init=False)
    attn_backend: BaseAttnBackend = field(init=False)
    moe_backend: BaseMoeBackend = field(init=False)
    kv_cache: BaseKVCachePool = field(init=False)
    _batch: Batch | None = field(default=None, init=False)

    @property
    def batch(self) -> Batch:
        """The batch being run; only there inside `forward_batch`."""
        assert self._batch is not None, "no batch is running"
        return self._batch

    @contextmanager
    def forward_batch(self, batch: Batch) -> Iterator[None]:
        """Make `batch` the running one and this context the current one."""
        assert self._batch is None, "batches do not nest"
        set_global_ctx(self)
        try:
            self._batch = batch
            yield
        finally:
            self._batch = None


_GLOBAL_CTX: Context | None = None


def set_global_ctx(ctx: Context) -> None:
    """Make `ctx` the current context; each engine of a process has its own."""
    global _GLOBAL_CTX
    _GLOBAL_CTX = ctx


def get_global_ctx() -> Context:
    """The current context; somebody must have set it."""
    assert _GLOBAL_CTX is not None, "no context: call set_global_ctx first"
    return _GLOBAL_CTX
