"""Stands for flashinfer 0.6: same names and parameters, same demands, plain torch.

Only what the engine uses is here. `tests/test_ch17_contract.py` holds this module and
the library to the same contract. Parameters that the engine leaves alone are accepted
and ignored.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

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

HEAD_DIMS = (64, 128, 256)
DECODE_GROUPS = (1, 2, 3, 4, 8)
"""Query heads a kv head for which the kernel without tensor cores is compiled."""

_plans = itertools.count(1)


class _Paged:
    """What both wrappers do: hold the plan of a batch, attend request by request.

    A plan is written to `_int_workspace_buffer`. Wrappers may share one, and then
    only the wrapper that planned last can run.
    """

    def _setup(self, workspace, kv_layout, buffers):
        check(kv_layout == "NHD", "this stand-in knows the layout NHD only")
        check(workspace.dtype == torch.uint8, "the workspace must be uint8")
        self._float_workspace_buffer = workspace
        self.device = workspace.device
        self._int_workspace_buffer = torch.zeros(
            8 << 20, dtype=torch.uint8, device=self.device
        )
        # Used memory, as the library may get it.
        self._pin_memory_int_workspace_buffer = torch.full(
            (64,), 255, dtype=torch.uint8
        )
        self._use_cuda_graph = buffers is not None
        if buffers is not None:
            if any(not torch.is_tensor(buffer) for buffer in buffers):
                raise ValueError("cudagraph mode needs all buffers")
            indptr, indices, last_page_len = buffers
            self._fixed_batch_size = len(last_page_len)
            if len(indptr) != self._fixed_batch_size + 1:
                raise ValueError(
                    "The size of paged_kv_indptr_buffer should be batch_size + 1"
                )
            self._indptr, self._indices = indptr, indices
            self._last_page_len = last_page_len
        self._plan_number = 0

    def reset_workspace_buffer(
        self, float_workspace_buffer, int_workspace_buffer
    ):
        self._float_workspace_buffer = float_workspace_buffer
        self._int_workspace_buffer = int_workspace_buffer

    @property
    def is_cuda_graph_enabled(self):
        return self._use_cuda_graph

    def _plan_pages(
        self, indptr, indices, last_page_len, heads, dim, page_size, q, kv
    ):
        for name, x in {
            "indptr": indptr,
            "indices": indices,
            "last_page_len": last_page_len,
        }.items():
            check_int32(x, name)
        batch_size, (qo_heads, kv_heads) = len(last_page_len), heads
        check(len(indptr) == batch_size + 1, "indptr must be [batch_size + 1]")
        check(int(indptr[0]) == 0, "indptr must begin with 0")
        check(bool((indptr.diff() >= 1).all()), "a request without a page")
        check(int(indptr[-1]) <= len(indices), "indptr points past indices")
        inside = (last_page_len >= 1) & (last_page_len <= page_size)
        check(bool(inside.all()), "1 <= last_page_len <= page_size")
        check(qo_heads % kv_heads == 0, "heads must be a multiple of kv heads")
        check(dim in HEAD_DIMS, f"Unsupported head_dim: {dim}")
        if self._use_cuda_graph:
            self._copy_into_buffers(indptr, indices, last_page_len, batch_size)
        else:
            self._indptr = indptr.to(self.device)
            self._indices = indices.to(self.device)
            self._last_page_len = last_page_len.to(self.device)
        self._shape = (qo_heads, kv_heads, dim, page_size)
        self._dtypes = (q, q if kv is None else kv)
        self._plan_number = next(_plans)
        self._mark().fill_(self._plan_number)

    def _check_idle_blocks(self, disable_split_kv):
        """Recorded, blocks that a plan leaves out do what stands in its tail."""
        self.shares_sequences = not disable_split_kv
        if self._use_cuda_graph and disable_split_kv:
            used = self._pin_memory_int_workspace_buffer.any()
            check(not used, "blocks without work would compute anything")

    def _copy_into_buffers(self, indptr, indices, last_page_len, batch_size):
        if batch_size != self._fixed_batch_size:
            raise ValueError(
                "The batch size should be fixed in cudagraph mode: "
                f"{batch_size} is not {self._fixed_batch_size}"
            )
        if len(indices) > len(self._indices):
            raise ValueError(
                "The size of indices should be less than or equal to the "
                "allocated buffer"
            )
        self._indptr.copy_(indptr)
        self._last_page_len.copy_(last_page_len)
        self._indices[: len(indices)].copy_(indices)

    def _mark(self):
        return self._int_workspace_buffer[:8].view(torch.int64)

    def _run(self, q, cache, qo_indptr, causal, out):
        check(self._plan_number > 0, "plan() comes before run()")
        check(
            int(self._mark()) == self._plan_number,
            "the plan of this wrapper was overwritten",
        )
        k_cache, v_cache = cache
        qo_heads, kv_heads, dim, page_size = self._shape
        for x, wanted, name in zip(
            (q, k_cache), self._dtypes, ("q", "k"), strict=True
        ):
            if x.dtype != wanted:
                raise ValueError(
                    f"The dtype of {name} {x.dtype} is not {wanted}"
                )
        check_dtype(q, "q")
        check_rows(q, "q")
        check_device(q, self._float_workspace_buffer, "q")
        check(tuple(q.shape[1:]) == (qo_heads, dim), "q: not as planned")
        wanted = (page_size, kv_heads, dim)
        check(tuple(k_cache.shape[1:]) == wanted, "k cache: not as planned")
        check(k_cache.shape == v_cache.shape, "k and v cache differ in shape")
        check(k_cache.stride() == v_cache.stride(), "k and v strides differ")
        out = torch.zeros_like(q) if out is None else out
        bounds = zip(
            qo_indptr.tolist(),
            qo_indptr[1:].tolist(),
            self._indptr.tolist(),
            self._indptr[1:].tolist(),
            self._last_page_len.tolist(),
            strict=False,
        )
        for q_from, q_to, page_from, page_to, last in bounds:
            pages = self._indices[page_from:page_to]
            length = (page_to - page_from - 1) * page_size + last
            k, v = (read_pages(c, pages, length) for c in (k_cache, v_cache))
            out[q_from:q_to] = attend(q[q_from:q_to], k, v, causal)
        return out


class BatchPrefillWithPagedKVCacheWrapper(_Paged):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
    ):
        buffers = (
            paged_kv_indptr_buf,
            paged_kv_indices_buf,
            paged_kv_last_page_len_buf,
        )
        self._setup(
            float_workspace_buffer,
            kv_layout,
            buffers if use_cuda_graph else None,
        )
        if use_cuda_graph and not torch.is_tensor(qo_indptr_buf):
            raise ValueError("qo_indptr_buf should be a torch.Tensor")
        self._qo_indptr, self._most_rows = qo_indptr_buf, None

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        non_blocking=True,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        seq_lens=None,
        seq_lens_q=None,
        block_tables=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        fixed_split_size=None,
        disable_split_kv=False,
    ):
        check_int32(qo_indptr, "qo_indptr")
        check(
            len(qo_indptr) == len(paged_kv_indptr),
            "qo_indptr has a wrong length",
        )
        self._plan_pages(
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            (num_qo_heads, num_kv_heads),
            head_dim_qk,
            page_size,
            q_data_type,
            kv_data_type,
        )
        self._check_idle_blocks(disable_split_kv)
        self._causal = causal
        if not self._use_cuda_graph:
            self._qo_indptr = qo_indptr.to(self.device)
            return
        rows = int(qo_indptr[-1])
        self._most_rows = self._most_rows or rows
        if rows > self._most_rows:
            raise ValueError("more rows than in the first plan")
        self._qo_indptr.copy_(qo_indptr)

    def run(
        self,
        q,
        paged_kv_cache,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        window_left=None,
        sinks=None,
        kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None,
    ):
        if len(q) != int(self._qo_indptr[-1]):
            raise ValueError(
                f"q.shape[0] ({len(q)}) does not match qo_indptr[-1]"
            )
        return self._run(q, paged_kv_cache, self._qo_indptr, self._causal, out)


class BatchDecodeWithPagedKVCacheWrapper(_Paged):
    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
        jit_args=None,
    ):
        buffers = (
            paged_kv_indptr_buffer,
            paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer,
        )
        self._use_tensor_cores = use_tensor_cores
        self._setup(
            float_workspace_buffer,
            kv_layout,
            buffers if use_cuda_graph else None,
        )

    @property
    def use_tensor_cores(self):
        return self._use_tensor_cores

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        pos_encoding_mode="NONE",
        window_left=-1,
        logits_soft_cap=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        data_type=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        non_blocking=True,
        block_tables=None,
        seq_lens=None,
        fixed_split_size=None,
        disable_split_kv=False,
        q_len_per_req=1,
    ):
        self._check_idle_blocks(disable_split_kv)
        group = num_qo_heads // num_kv_heads
        check(
            self._use_tensor_cores or group in DECODE_GROUPS,
            f"Unsupported group_size: {group}",
        )
        self._plan_pages(
            indptr,
            indices,
            last_page_len,
            (num_qo_heads, num_kv_heads),
            head_dim,
            page_size,
            q_data_type,
            kv_data_type,
        )

    def run(
        self,
        q,
        paged_kv_cache,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        window_left=None,
        sinks=None,
        q_len_per_req=None,
        skip_softmax_threshold_scale_factor=None,
        kv_cache_sf=None,
    ):
        size = len(self._last_page_len)
        check(len(q) == size, f"q has {len(q)} rows for {size} requests")
        ones = torch.arange(size + 1, dtype=torch.int32)
        return self._run(q, paged_kv_cache, ones, False, out)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(
    BatchDecodeWithPagedKVCacheWrapper
):
    def __init__(
        self,
        workspace_buffer,
        indptr_buffer,
        indices_buffer,
        last_page_len_buffer,
        kv_layout="NHD",
        use_tensor_cores=False,
    ):
        super().__init__(
            workspace_buffer,
            kv_layout,
            True,
            use_tensor_cores,
            indptr_buffer,
            indices_buffer,
            last_page_len_buffer,
        )
        self._whole = None

    def plan(self, *args, disable_split_kv=False, **kwargs):
        # Recorded is one of the two; a plan for the other is read as garbage.
        first = self._whole is None
        self._whole = disable_split_kv if first else self._whole
        check(disable_split_kv == self._whole, "planned the other way before")
        super().plan(*args, disable_split_kv=disable_split_kv, **kwargs)


# Operators.


def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    check(input.dim() in (2, 3), f"Unsupported input dimension: {input.dim()}")
    check(weight.shape == input.shape[-1:], "weight must be [hidden_size]")
    check(weight.dtype == input.dtype, "weight must have the input's dtype")
    check_dtype(input, "input")
    check_rows(input, "input")
    check_device(weight, input, "weight")
    wide = input.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    result = (wide * scale * weight.float()).to(input.dtype)
    return result if out is None else out.copy_(result)


def fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    check(input.dim() == 2, "input must be [batch_size, hidden_size]")
    check(residual.shape == input.shape, "residual must be shaped like input")
    check_rows(residual, "residual")
    check_device(residual, input, "residual")
    residual.add_(input)
    rmsnorm(residual, weight, eps, out=input)


def gemma_rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
    return rmsnorm(input, 1.0 + weight, eps, out)


def gemma_fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
    fused_add_rmsnorm(input, residual, 1.0 + weight, eps)


def silu_and_mul(input, out=None, enable_pdl=None):
    if input.shape[-1] * input.element_size() % 16 != 0:
        raise ValueError("The pointers must be multiple of 16 bytes.")
    check_dtype(input, "input")
    # The kernel takes the rows one after another, whatever the strides say.
    check(input.is_contiguous(), "input must be contiguous")
    gate, up = input.float().chunk(2, dim=-1)
    result = (torch.nn.functional.silu(gate) * up).to(input.dtype)
    return result if out is None else out.copy_(result)


def apply_rope_with_cos_sin_cache_inplace(
    positions, query, key, head_size, cos_sin_cache, is_neox=True
):
    if cos_sin_cache.dtype != torch.float32:
        raise ValueError("cos_sin_cache should be float32")
    check(is_neox, "this stand-in pairs halves only")
    check(
        positions.dtype in (torch.int32, torch.int64), "positions must be int"
    )
    check(positions.is_contiguous(), "positions must be contiguous")
    check(cos_sin_cache.is_contiguous(), "cos_sin_cache must be contiguous")
    check(len(positions) == len(query) == len(key), "one position a token")
    half = cos_sin_cache.shape[1] // 2
    cos, sin = cos_sin_cache[positions.long()].unsqueeze(1).chunk(2, dim=-1)
    for x in (query, key):
        check_dtype(x, "query and key")
        check_rows(x, "query and key")
        check_device(cos_sin_cache, x, "cos_sin_cache")
        heads = x.view(len(x), -1, head_size)
        low, high = (
            heads[..., :half].float(),
            heads[..., half : 2 * half].float(),
        )
        turned = (low * cos - high * sin, high * cos + low * sin)
        heads[..., : 2 * half] = torch.cat(turned, -1).to(x.dtype)


# Sampling: flashinfer.sampling.


def softmax(logits, temperature=None, enable_pdl=None):
    check(logits.is_contiguous(), "logits must be contiguous")
    if torch.is_tensor(temperature):
        check(
            temperature.shape == logits.shape[:1], "temperature must be [rows]"
        )
        temperature = temperature.unsqueeze(1)
    return (
        logits.float() / (1.0 if temperature is None else temperature)
    ).softmax(-1)


def top_k_renorm_probs(probs, top_k):
    check(
        probs.is_contiguous() and probs.dim() == 2, "probs must be contiguous"
    )
    check(top_k.shape == probs.shape[:1], "top_k must be [rows]")
    k = top_k.long().clamp(max=probs.shape[1]).unsqueeze(1)
    least = probs.sort(-1, descending=True).values.gather(1, k - 1)
    kept = probs.masked_fill(probs < least, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def top_p_renorm_probs(probs, top_p, is_deterministic=False):
    check(
        probs.is_contiguous() and probs.dim() == 2, "probs must be contiguous"
    )
    check(top_p.shape == probs.shape[:1], "top_p must be [rows]")
    ordered = probs.sort(-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    needed = (before < top_p.unsqueeze(1)).sum(-1, keepdim=True).clamp(min=1)
    kept = probs.masked_fill(probs < ordered.gather(1, needed - 1), 0.0)
    return kept / kept.sum(-1, keepdim=True)


sampling = SimpleNamespace(
    softmax=softmax,
    top_k_renorm_probs=top_k_renorm_probs,
    top_p_renorm_probs=top_p_renorm_probs,
)
