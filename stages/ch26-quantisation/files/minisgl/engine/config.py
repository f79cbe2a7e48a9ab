"""Everything an engine is told before it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from minisgl.attention import validate_attn_backend
from minisgl.distributed import DistributedInfo
from minisgl.moe import validate_moe_backend
from minisgl.quant import (
    SUPPORTED_KV_DTYPES,
    SUPPORTED_QUANTIZATION,
    quantize_on_load,
)

# Types only: settings are read before there is a model.
if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from minisgl.models import ModelConfig


@dataclass(frozen=True)
class EngineConfig:
    """Settings of an engine.

    model_path: a folder or a hub id.
    tp_info: this rank, of how many.
    dtype: what to run in; ``auto`` is what config.json states.
    max_running_req: most requests in one batch.
    attention_backend: a name the registry knows, two for prefill and decode
        with a comma between, or ``auto``.
    moe_backend: the same for layers of experts, one name.
    cuda_graph_bs: batch sizes for which to record decode steps.
    cuda_graph_max_bs: in its place the largest of them; 0 records none.
    page_size: tokens a page of the KV pool holds.
    memory_ratio: share of the free device memory for weights and KV pool.
    distributed_timeout: seconds that ranks wait for each other before they fail.
    use_dummy_weight: random weights, to measure without a checkpoint.
    use_pynccl: has no effect; GPUs communicate through torch's NCCL.
    max_seq_len_override: a shorter context than the model's own.
    num_page_override: pages of the pool, instead of what memory allows.
    device: ``auto``, ``cpu`` or ``cuda``.
    quantization: fp8, int8 or int4, for the linears of a checkpoint that is in
        full precision. One that is quantised is recognised without it.
    kv_cache_dtype: what keys and values are kept in, fp8_e4m3 or ``auto``.

    Raises:
        ValueError: a value that is out of range or not known.
    """

    model_path: str
    tp_info: DistributedInfo
    dtype: torch.dtype | str
    max_running_req: int = 256
    attention_backend: str = "auto"
    moe_backend: str = "auto"
    cuda_graph_bs: list[int] | None = None
    cuda_graph_max_bs: int | None = None
    page_size: int = 1
    memory_ratio: float = 0.9
    distributed_timeout: float = 60.0
    use_dummy_weight: bool = False
    use_pynccl: bool = True
    max_seq_len_override: int | None = None
    num_page_override: int | None = None
    device: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        sizes = ("max_running_req", "page_size")
        overrides = ("max_seq_len_override", "num_page_override")
        for name in sizes + overrides:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if any(size < 1 for size in self.cuda_graph_bs or ()):
            raise ValueError(
                f"cuda_graph_bs are batch sizes, not {self.cuda_graph_bs}"
            )
        if (self.cuda_graph_max_bs or 0) < 0:
            raise ValueError(
                "cuda_graph_max_bs must be at least 0, got "
                f"{self.cuda_graph_max_bs}"
            )
        if not 0.0 < self.memory_ratio <= 1.0:
            raise ValueError(
                f"memory_ratio must be in (0, 1], got {self.memory_ratio}"
            )
        if not 0.0 < self.distributed_timeout < 1e6:
            raise ValueError(
                "distributed_timeout must be above 0 and below a million "
                f"seconds, got {self.distributed_timeout}"
            )
        validate_attn_backend(self.attention_backend)
        validate_moe_backend(self.moe_backend)
        if self.quantization is not None:
            SUPPORTED_QUANTIZATION.assert_supported(self.quantization)
        if self.kv_cache_dtype not in SUPPORTED_KV_DTYPES:
            raise ValueError(
                f"kv_cache_dtype {self.kv_cache_dtype!r} is not supported; use "
                f"one of {', '.join(SUPPORTED_KV_DTYPES)}"
            )

    @cached_property
    def hf_config(self) -> PretrainedConfig:
        from minisgl.utils import cached_load_hf_config

        return cached_load_hf_config(self.model_path)

    @cached_property
    def model_config(self) -> ModelConfig:
        from minisgl.models import ModelConfig

        config = ModelConfig.from_hf(self.hf_config)
        quantization = config.quantization
        if self.quantization is not None:
            quantization = quantize_on_load(self.quantization, quantization)
        return replace(
            config,
            quantization=quantization,
            kv_cache_dtype=self.kv_cache_dtype,
        )

    @property
    def max_seq_len(self) -> int:
        """Longest sequence, prompt and answer together, in tokens."""
        longest = self.model_config.rotary_config.max_position
        return min(longest, self.max_seq_len_override or longest)

    @property
    def distributed_addr(self) -> str:
        """Where the ranks find each other, as torch.distributed writes it."""
        return "tcp://127.0.0.1:2333"
