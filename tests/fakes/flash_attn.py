"""Stands for flash-attn 2.8: same functions, parameters and demands, plain torch."""

from __future__ import annotations

import torch

from tests.fakes.checks import (
    attend,
    check,
    check_device,
    check_dtype,
    check_int32,
    check_rows,
    read_pages,
)


def _check_tensors(q, k_cache, v_cache):
    for name, x in {"q": q, "k_cache": k_cache, "v_cache": v_cache}.items():
        check_dtype(x, name)
        check_rows(x, name)
        check(x.dtype == q.dtype, "query and key must have the same dtype")
        check_device(x, q, name)
    heads, dim = q.shape[-2:]
    check(
        dim % 8 == 0 and dim <= 256, "head_size must be a multiple of 8, <= 256"
    )
    check(tuple(k_cache.shape[-1:]) == (dim,), "k_cache: another head size")
    check(
        heads % k_cache.shape[-2] == 0, "heads must be a multiple of kv heads"
    )
    check(k_cache.shape == v_cache.shape, "k_cache and v_cache differ in shape")


def _check_table(block_table, k_cache, batch_size):
    check(block_table is not None, "this stand-in knows paged caches only")
    check_int32(block_table, "block_table", dims=2)
    check_rows(block_table, "block_table")
    check(len(block_table) == batch_size, "block_table must be [batch_size, n]")
    check(
        k_cache.shape[1] % 256 == 0,
        "Paged KV cache block size must be divisible by 256",
    )


def paged(q, k_cache, v_cache, table, lengths, cu_q, causal, scale):
    """Each request's rows of q over its pages, of which the table may name more."""
    out, size = torch.empty_like(q), k_cache.shape[1]
    for row, length in enumerate(lengths.tolist()):
        rows = slice(int(cu_q[row]), int(cu_q[row + 1]))
        pages = table[row, : -(-length // size)]
        check(len(pages) * size >= length, "the table has too few pages")
        k, v = (read_pages(c, pages, length) for c in (k_cache, v_cache))
        out[rows] = attend(q[rows], k, v, causal, scale)
    return out


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    check(q.dim() == 4, "q must be [batch_size, seqlen, nheads, headdim]")
    batch_size, new = q.shape[:2]
    _check_tensors(q, k_cache, v_cache)
    _check_table(block_table, k_cache, batch_size)
    check_int32(cache_seqlens, "cache_seqlens")
    check(cache_seqlens.is_contiguous(), "cache_seqlens must be contiguous")
    check(
        len(cache_seqlens) == batch_size, "cache_seqlens must be [batch_size]"
    )
    cu_q = torch.arange(batch_size + 1) * new
    out = paged(
        q.flatten(0, 1),
        k_cache,
        v_cache,
        block_table,
        cache_seqlens,
        cu_q,
        causal,
        softmax_scale,
    )
    return out.view_as(q)


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    check(q.dim() == 3, "q must be [total_q, nheads, headdim]")
    _check_tensors(q, k, v)
    for name, cu in {"q": cu_seqlens_q, "k": cu_seqlens_k}.items():
        check_int32(cu, f"cu_seqlens_{name}")
        check(cu.is_contiguous(), f"cu_seqlens_{name} must be contiguous")
    check(len(cu_seqlens_q) == len(cu_seqlens_k), "cu_seqlens differ in length")
    check(int(cu_seqlens_q[-1]) == len(q), "cu_seqlens_q must end with total_q")
    _check_table(block_table, k, len(cu_seqlens_q) - 1)
    lengths = cu_seqlens_k.diff()
    check(
        max_seqlen_q >= int(cu_seqlens_q.diff().max()), "max_seqlen_q too low"
    )
    check(max_seqlen_k >= int(lengths.max()), "max_seqlen_k too low")
    return paged(
        q, k, v, block_table, lengths, cu_seqlens_q, causal, softmax_scale
    )
