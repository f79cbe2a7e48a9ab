"""Keys and values into the pool: a CUDA kernel beside its torch reference."""

from __future__ import annotations

from functools import cache

import torch

from minisgl.kernel.compile import Library, Target
from minisgl.kernel.utils import (
    KernelConfig,
    Rows,
    check_launch,
    current_stream,
    kernel_target,
    make_cpp_args,
    rows_of,
    try_load_jit,
    word_size,
)

DEFAULT_STORE_KERNEL_CONFIG = KernelConfig(num_threads=128, max_occupancy=1)


@cache
def _jit_store_module(
    element_size: int,
    *,
    word: int,
    index: torch.dtype,
    target: Target,
    config: KernelConfig = DEFAULT_STORE_KERNEL_CONFIG,
) -> Library | None:
    """The kernel for rows of `element_size` bytes in words of `word`."""
    args = make_cpp_args(index, element_size, word)
    return try_load_jit(
        "store",
        files=["store.cu"],
        wrappers=[("store", f"store<{args}, {config.template_args}>")],
        target=target,
    )


def store_cache_torch(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> None:
    """What `store_cache` means, in two lines of torch."""
    k_cache[indices] = k.view(len(k), *k_cache.shape[1:])
    v_cache[indices] = v.view(len(v), *v_cache.shape[1:])


def store_cache(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> None:
    """Write row i of k and v to slot indices[i] of the caches.

    k_cache, v_cache: [slots, ...], the same strides, rows without gaps.
    indices: int32 or int64 [T]. On a GPU a slot that is not there is skipped,
        and rows for one and the same slot may end up mixed.
    k, v: [T, ...] of the caches' dtype, as many elements a row; rows may lie
        apart, as parts of a larger product do.

    Raises:
        TypeError: indices of another dtype.
        ValueError: shapes, dtypes or strides that do not fit.
    """
    target = kernel_target(k_cache.device)
    if target is None or len(indices) == 0:
        return store_cache_torch(k_cache, v_cache, indices, k, v)
    tensors = (k_cache, v_cache, k, v)
    to_k, to_v, from_k, from_v = rows = [rows_of(x) for x in tensors]
    _check(tensors, rows, indices)
    module = _jit_store_module(
        to_k.size, word=word_size(*rows), index=indices.dtype, target=target
    )
    if module is None:
        return store_cache_torch(k_cache, v_cache, indices, k, v)
    status = module.store(
        *(to_k.address, to_v.address, indices.data_ptr()),
        *(from_k.address, from_v.address, from_k.length, to_k.length),
        *(to_k.stride, from_k.stride, from_v.stride),
        current_stream(k_cache.device),
    )
    check_launch("store", status)


def _check(
    tensors: tuple[torch.Tensor, ...], rows: list[Rows], indices: torch.Tensor
) -> None:
    """What the kernel takes for granted."""
    to_k, to_v, from_k, from_v = rows
    if to_k[1:] != to_v[1:]:
        raise ValueError("the caches of k and v differ in shape or strides")
    if not to_k.size == from_k.size == from_v.size:
        raise ValueError(
            f"rows of {from_k.size} and {from_v.size} bytes do not fit into "
            f"slots of {to_k.size}"
        )
    if not from_k.length == from_v.length == len(indices):
        raise ValueError(
            f"{from_k.length} keys and {from_v.length} values for "
            f"{len(indices)} slots"
        )
    if len({x.dtype for x in tensors}) > 1:
        raise ValueError("k, v and their caches have one dtype")
    if len({x.device for x in (*tensors, indices)}) > 1:
        raise ValueError("k, v, their caches and the indices share a device")
    if not indices.is_contiguous():
        raise ValueError("the indices have gaps")
