"""One model, its KV pool, and the forward step."""

from __future__ import annotations

import os
import random
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from minisgl.attention import (
    Demand,
    choose_attn_backend,
    create_attention_backend,
)
from minisgl.attention.stateful import StatefulBackend
from minisgl.core import Batch, Context, set_global_ctx
from minisgl.distributed import (
    DistributedCommunicator,
    destroy_distributed,
    set_tp_info,
)
from minisgl.engine.config import EngineConfig
from minisgl.engine.graph import GraphRunner, largest_batch, make_dummy
from minisgl.engine.sample import BatchSamplingArgs, Sampler
from minisgl.kvcache import create_kvcache_pool
from minisgl.kvcache.state_pool import StatePool, slot_bytes
from minisgl.layers import set_rope_device
from minisgl.layers.packed import can_pack, pack_linears
from minisgl.models import BaseLLMModel, create_model, load_model_weight
from minisgl.models.shard import local_config
from minisgl.models.weight import fill_randomly
from minisgl.moe import create_moe_backend
from minisgl.utils import (
    align_ceil,
    init_logger,
    nvtx_annotate,
    pick_device,
    resolve_dtype,
    torch_dtype,
)
from minisgl.utils.device import Event, new_event, new_stream, to_host

logger = init_logger(__name__)


class ForwardOutput(NamedTuple):
    """What a step made.

    next_tokens_gpu: int32 [B] on the device, always valid as the next input.
    next_tokens_cpu: int32 [B] on the host, once the event has happened; a
        FAILED_TOKEN where a request's logits were not numbers.
    """

    next_tokens_gpu: torch.Tensor
    next_tokens_cpu: torch.Tensor
    copy_done_event: Event


class Engine:
    """Owns the model, the page table and the KV pool of one device.

    Over several ranks each has an engine, in a process of its own, and a part
    of the model. All are made together, and take the same steps.

    tp_cpu_group: all ranks, for tensors on the CPU; None if there is only one.

    Raises:
        ValueError: a setting or a model that is not supported.
        RuntimeError: no memory is left for the KV pool, or a rank has not come.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._tp_info = config.tp_info
        # Before the ranks wait for each other.
        local = local_config(config.model_config, config.tp_info.size)
        self.device = _device_of_rank(config)
        self.dtype = resolve_dtype(config.dtype, config.hf_config)
        # A backend that cannot serve is refused before anything is loaded.
        attn_backend = choose_attn_backend(
            config.attention_backend,
            Demand(local, config.page_size, self.dtype, self.device),
        )
        self.stream = new_stream(self.device)
        self.max_seq_len = config.max_seq_len
        self.ctx = Context(config.page_size)
        set_global_ctx(self.ctx)

        self.tp_cpu_group = self._init_communication(config)
        free_memory = self._free_memory()
        self.model = self._load_model(config)
        self.states = self._create_states(free_memory, config)
        self.num_pages = self._determine_num_pages(free_memory, config)
        self.ctx.kv_cache = create_kvcache_pool(
            local,
            self.num_pages + 1,  # the last one is the dummy's
            config.page_size,
            local.kv_dtype(self.dtype),
            self.device,
        )
        # Whole pages fit in a row, and its last column is nobody's.
        length = align_ceil(self.max_seq_len + 1, config.page_size)
        self.page_table = torch.zeros(
            (config.max_running_req + 1, length),
            dtype=torch.int32,
            device=self.device,
        )
        self.ctx.page_table = self.page_table
        dummy_slot = self.num_pages * config.page_size
        self.dummy_req = make_dummy(self.page_table, dummy_slot)
        self.attn_backend = create_attention_backend(attn_backend, local)
        if self.states is not None:
            self.attn_backend = StatefulBackend(self.attn_backend, self.states)
        self.ctx.attn_backend = self.attn_backend
        if config.model_config.is_moe:
            self.ctx.moe_backend = create_moe_backend(
                config.moe_backend, self.device
            )
        # Ranks draw for themselves, so they must draw the same numbers.
        seed = self._from_rank0(random.SystemRandom().getrandbits(62))
        vocab_size = config.model_config.vocab_size
        self.sampler = Sampler(self.device, vocab_size, seed)
        self._comm = DistributedCommunicator()
        self.graph_runner = GraphRunner(
            stream=self.stream,
            device=self.device,
            model=self.model,
            attn_backend=self.attn_backend,
            cuda_graph_bs=config.cuda_graph_bs,
            cuda_graph_max_bs=self._largest_recording(config),
            free_memory=self._least(self._free_memory()),
            max_seq_len=self.max_seq_len,
            vocab_size=vocab_size,
            dummy_req=self.dummy_req,
        )
        logger.debug(
            f"{self.num_pages} pages of {config.page_size} on {self.device}, "
            f"attention by {attn_backend}"
        )

    def _largest_recording(self, config: EngineConfig) -> int:
        """Requests of the largest step to record; 0 records none.

        Raises:
            ValueError: what shall be recorded waits for the host.
        """
        waits = self.device.type == "cuda" and config.model_config.is_moe
        if not (waits and self.ctx.moe_backend.reads_on_host):
            return largest_batch(config, self.attn_backend, self.device)
        if config.cuda_graph_bs or config.cuda_graph_max_bs:
            raise ValueError(
                "with MoE backend 'torch' every layer waits for the host, which "
                "cannot be recorded; use fused, or --cuda-graph-max-bs 0"
            )
        return 0

    def _init_communication(
        self, config: EngineConfig
    ) -> dist.ProcessGroup | None:
        """Join the other ranks; returns the group for tensors on the CPU."""
        info, device = config.tp_info, self.device
        set_tp_info(info.rank, info.size)
        if info.size == 1:
            return None
        on_gpu = device.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=config.distributed_addr,
            timeout=timedelta(seconds=config.distributed_timeout),
            rank=info.rank,
            world_size=info.size,
            device_id=device if on_gpu else None,
        )
        logger.info(f"rank {info.rank} of {info.size} is on {device}")
        return dist.new_group(backend="gloo") if on_gpu else dist.group.WORLD

    def _from_rank0(self, number: int) -> int:
        """Rank 0's number, on every rank."""
        if self.tp_cpu_group is None:
            return number
        shared = torch.tensor(number)
        dist.broadcast(shared, group=self.tp_cpu_group, group_src=0)
        return int(shared)

    def _least(self, number: int) -> int:
        """The least of all ranks' numbers, on every rank."""
        if self.tp_cpu_group is None:
            return number
        shared = torch.tensor(number)
        dist.all_reduce(shared, dist.ReduceOp.MIN, self.tp_cpu_group)
        return int(shared)

    def _load_model(self, config: EngineConfig) -> BaseLLMModel:
        set_rope_device(self.device)
        with torch.device("meta"), torch_dtype(self.dtype):
            model = create_model(config.model_config)
        if config.use_dummy_weight:
            fill_randomly(model, self.device)
        else:
            load_model_weight(model, config.model_path, self.device, self.dtype)
        if can_pack(self.device, self.dtype):
            pack_linears(model)
        return model

    def _free_memory(self) -> int:
        """Bytes: free on the GPU; on a CPU a quarter of the machine's memory.

        The other processes of the machine need the rest, and ranks share it.
        """
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            return torch.cuda.mem_get_info(self.device)[0]
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return memory // 4 // self._tp_info.size

    def _memory_budget(self, old_free_memory: int, config: EngineConfig) -> int:
        """Bytes for what requests keep: all that may be used but the weights."""
        weights = sum(w.nbytes for w in self.model.state_dict().values())
        return int(old_free_memory * config.memory_ratio) - weights

    def _create_states(
        self, old_free_memory: int, config: EngineConfig
    ) -> StatePool | None:
        """The pool of states, if the model needs one.

        As many snapshots as rows, in at most a quarter of what the rows leave.

        Raises:
            RuntimeError: there is no memory for the rows.
        """
        model = local_config(config.model_config, self._tp_info.size)
        if model.linear is None:
            return None
        rows = config.max_running_req + 1  # the last one is the dummy's
        size = slot_bytes(model.linear, self.dtype)
        budget = self._memory_budget(old_free_memory, config)
        # One more slot is always zeros.
        left = self._least(budget - size * (rows + 1))
        if left < 0:
            raise RuntimeError(
                f"no memory for the states of {rows - 1} requests, {size >> 20} "
                f"MiB each: {budget >> 20} MiB are left beside the weights; "
                "lower max_running_req"
            )
        snapshots = min(config.max_running_req, left // 4 // size)
        return StatePool(model.linear, rows, snapshots, self.dtype, self.device)

    def _determine_num_pages(
        self, old_free_memory: int, config: EngineConfig
    ) -> int:
        """Pages that fit beside the weights, at most as many as rows can use.

        The rank with the least memory decides for all: they share page numbers.
        """
        if config.num_page_override is not None:
            return config.num_page_override
        model = local_config(config.model_config, self._tp_info.size)
        per_token = (
            2 * model.num_kv_layers * model.num_kv_heads * model.head_dim
        )
        kv_dtype = model.kv_dtype(self.dtype)
        page_bytes = per_token * config.page_size * kv_dtype.itemsize
        budget = self._memory_budget(old_free_memory, config)
        budget -= 0 if self.states is None else self.states.nbytes
        row_pages = (
            align_ceil(self.max_seq_len, config.page_size) // config.page_size
        )
        # One page more is the dummy's.
        pages = self._least(
            min(budget // page_bytes - 1, row_pages * config.max_running_req)
        )
        if pages < 1:
            raise RuntimeError(
                f"no memory for the KV pool: {budget >> 20} MiB are left beside "
                "the weights; raise memory_ratio or use a smaller model"
            )
        return pages

    def forward_batch(
        self, batch: Batch, args: BatchSamplingArgs
    ) -> ForwardOutput:
        """Run a prepared batch and sample one token for each of its requests.

        The counters of the requests move on at once, before the device is done.

        Raises:
            ValueError: a request is longer than the context.
        """
        for req in batch.reqs:
            if req.device_len > self.max_seq_len:
                raise ValueError(
                    f"request {req.uid} has {req.device_len} tokens, more "
                    f"than the context of {self.max_seq_len}"
                )
        logits = self._run_model(batch)
        for req in batch.reqs:
            req.complete_one()
        tokens = self.sampler.sample(logits, args)
        if self.device.type == "cuda" and args.uniforms is not None:
            # The same logits and number may give a GPU another token: it adds
            # probabilities up in any order. Rank 0's choice counts.
            tokens = self._comm.all_gather(tokens)[: len(tokens)]
        on_host = to_host(tokens)
        event = new_event(self.device)
        event.record()
        # A failed row may run once more before the host sees that it failed.
        return ForwardOutput(tokens.clamp(min=0), on_host, event)

    @nvtx_annotate("Model")
    def _run_model(self, batch: Batch) -> torch.Tensor:
        """Logits [requests, vocab], recorded or launch by launch."""
        if self.graph_runner.can_use_cuda_graph(batch):
            return self.graph_runner.replay(batch)
        with self.ctx.forward_batch(batch):
            logits: torch.Tensor = self.model.forward()
        return logits

    def shutdown(self) -> None:
        """Leave the other ranks, once they have come to the same point."""
        if self.tp_cpu_group is not None:
            # NCCL does not end as long as recordings hold its launches.
            self.graph_runner.destroy_cuda_graphs()
            destroy_distributed()
            self.tp_cpu_group = None


def _device_of_rank(config: EngineConfig) -> torch.device:
    """A rank's own GPU, or the CPU that all share."""
    device, info = pick_device(config.device), config.tp_info
    if device.type != "cuda" or info.size == 1:
        return device
    if info.size > (count := torch.cuda.device_count()):
        raise ValueError(
            f"{info.size} ranks need a GPU each, and there are {count}; choose "
            "a smaller --tensor-parallel-size"
        )
    device = torch.device("cuda", info.rank)
    torch.cuda.set_device(device)
    return device
