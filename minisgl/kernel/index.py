"""Rows of a table by index: a CUDA kernel beside its torch reference."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

from minisgl.kernel.compile import Library, Target
from minisgl.kernel.utils import (
    KernelConfig,
    check_launch,
    current_stream,
    kernel_target,
    make_cpp_args,
    rows_of,
    try_load_jit,
    word_size,
)

DEFAULT_INDEX_KERNEL_CONFIG = KernelConfig(num_threads=128, max_occupancy=1)

# A warp has this much of a row in flight at once; more of it waits its turn.
_PART_BYTES = 2048


@cache
def _jit_index_module(
    element_size: int,
    *,
    num_splits: int = 1,
    word: int,
    index: torch.dtype,
    target: Target,
    config: KernelConfig = DEFAULT_INDEX_KERNEL_CONFIG,
) -> Library | None:
    """The kernel for rows of `element_size` bytes, `num_splits` warps each."""
    args = make_cpp_args(index, element_size, word, num_splits)
    return try_load_jit(
        "index",
        files=["index.cu"],
        wrappers=[("lookup", f"lookup<{args}, {config.template_args}>")],
        target=target,
    )


def indexing_torch(
    weights: torch.Tensor,
    indices: torch.Tensor,
    vocab_range: tuple[int, int] | None = None,
) -> torch.Tensor:
    """What `indexing` means, in torch."""
    if vocab_range is None:
        return F.embedding(indices, weights)
    first, last = vocab_range
    here = (indices >= first) & (indices < last)
    rows = F.embedding(torch.where(here, indices - first, 0), weights)
    # Chosen, not multiplied by 0: the row of another id may hold NaN.
    return torch.where(here.unsqueeze(-1), rows, 0)


def indexing(
    weights: torch.Tensor,
    indices: torch.Tensor,
    *,
    output: torch.Tensor | None = None,
    vocab_range: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Row weights[i] for every index i: [T] -> [T, dim], into `output`.

    weights: [rows, dim]; indices: int32 or int64 [T].
    vocab_range: (first, last): the table holds the rows of the ids first to
        last - 1 only, and any other id gives zeros, so that the sum over all
        parts of a table is the whole. Left out, an id that is not in the table
        gives zeros on a GPU and an IndexError on a CPU.

    Raises:
        TypeError: indices of another dtype.
        ValueError: shapes or strides that do not fit.
    """
    target = kernel_target(weights.device)
    if target is None or len(indices) == 0:
        return _by_torch(weights, indices, output, vocab_range)
    if weights.dim() != 2 or indices.dim() != 1 or not indices.is_contiguous():
        raise ValueError("indexing takes a table [rows, dim] and indices [T]")
    if weights.device != indices.device:
        raise ValueError("the table and the indices share a device")
    shape = (len(indices), weights.shape[1])
    result = weights.new_empty(shape) if output is None else output
    if result.shape != shape or not result.is_contiguous():
        raise ValueError(f"output must be {list(shape)} without gaps")
    table, rows = rows_of(weights), rows_of(result)
    module = _jit_index_module(
        table.size,
        num_splits=_count_splits(table.size, word := word_size(table, rows)),
        word=word,
        index=indices.dtype,
        target=target,
    )
    if module is None:
        return _by_torch(weights, indices, output, vocab_range)
    first, last = vocab_range or (0, table.length)
    status = module.lookup(
        *(table.address, indices.data_ptr(), rows.address),
        *(rows.length, table.stride, first, min(last, first + table.length)),
        current_stream(weights.device),
    )
    check_launch("index", status)
    return result


def _by_torch(
    weights: torch.Tensor,
    indices: torch.Tensor,
    output: torch.Tensor | None,
    vocab_range: tuple[int, int] | None,
) -> torch.Tensor:
    rows = indexing_torch(weights, indices, vocab_range)
    return rows if output is None else output.copy_(rows)


def _count_splits(size: int, word: int) -> int:
    """How many warps share a row of `size` bytes, in parts of whole words."""
    splits = 1
    while size // splits > _PART_BYTES and size % (2 * splits * word) == 0:
        splits *= 2
    return splits
