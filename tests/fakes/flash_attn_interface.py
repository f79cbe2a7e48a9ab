"""Stands for flash-attn 3, whose one function takes any page size, in plain torch."""

from __future__ import annotations

from tests.fakes.checks import check, check_int32, check_rows
from tests.fakes.flash_attn import _check_tensors, paged


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
):
    check(
        q.dim() == 3, "q must be [total_q, nheads, headdim] with cu_seqlens_q"
    )
    _check_tensors(q, k_cache, v_cache)
    check_int32(page_table, "page_table", dims=2)
    check_rows(page_table, "page_table")
    for name, x in {"seqlens": cache_seqlens, "cu_q": cu_seqlens_q}.items():
        check_int32(x, name)
        check(x.is_contiguous(), f"{name} must be contiguous")
    check(
        len(page_table) == len(cache_seqlens), "page_table: another batch size"
    )
    check(
        len(cu_seqlens_q) == len(cache_seqlens) + 1, "cu_seqlens_q: [batch + 1]"
    )
    check(int(cu_seqlens_q[-1]) == len(q), "cu_seqlens_q must end with total_q")
    check(
        max_seqlen_q >= int(cu_seqlens_q.diff().max()), "max_seqlen_q too low"
    )
    return paged(
        q,
        k_cache,
        v_cache,
        page_table,
        cache_seqlens,
        cu_seqlens_q,
        causal,
        softmax_scale,
    )
