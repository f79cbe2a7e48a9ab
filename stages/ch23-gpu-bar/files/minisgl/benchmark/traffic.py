"""What answering requests must move and compute, and how fast a device can."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from minisgl.benchmark.workload import Request
from minisgl.engine import Engine
from minisgl.models import ModelConfig


@dataclass(frozen=True)
class Rates:
    """What was measured here: bytes a second, and operations a second.

    copy: bytes that a copy reads and writes.
    matrix: multiplications and additions of a large product.
    """

    copy: float
    matrix: float


@dataclass(frozen=True)
class Traffic:
    """The least that some requests ask of a device.

    cache: bytes of keys and values that decode steps read.
    weights: bytes of weights, once for every decode step; all experts, for a
        batch that is not small chooses all.
    prompts: operations on the tokens of prompts, of experts by those that are
        chosen.
    """

    cache: float
    weights: float
    prompts: float

    def seconds(self, rates: Rates) -> float:
        """Without anything in between, and nothing at the same time."""
        moved = (self.cache + self.weights) / rates.copy
        return moved + self.prompts / rates.matrix


def traffic_of(
    engine: Engine, config: ModelConfig, requests: Sequence[Request]
) -> Traffic:
    """The traffic of requests that are all there at once, without a prefix hit.

    Every step reads the weights, but for the table of embeddings, of which it
    reads a row a token; and what it attends to, once. A head that has no
    `lm_head.weight` of its own multiplies by that table. A prompt is computed
    at the rate of a large product, by what `_used` says of each weight.
    """
    pool = engine.ctx.kv_cache
    per_token = 2 * pool.num_layers * pool.k_cache(0)[0, 0].nbytes
    state = engine.model.state_dict()
    weights = {name: w for name, w in state.items() if w.dim() > 1}
    if "lm_head.weight" in weights:
        weights = {k: w for k, w in weights.items() if "embed_tokens" not in k}
    computed = sum(
        _used(config, name, w.numel())
        for name, w in weights.items()
        if "embed" not in name and "head" not in name
    )
    contexts = sum(
        len(r.prompt) * r.output + r.output * (r.output - 1) // 2
        for r in requests
    )
    tokens = sum(len(r.prompt) for r in requests)
    steps = max(r.output for r in requests)
    return Traffic(
        cache=per_token * contexts,
        weights=steps * sum(w.nbytes for w in weights.values()),
        prompts=2 * tokens * computed
        + sum(_attention(config, len(r.prompt)) for r in requests),
    )


def _used(config: ModelConfig, name: str, size: int) -> int:
    """Of a weight's numbers those that a token meets; of experts, a few."""
    if ".experts." not in name:
        return size
    return size * config.num_experts_per_tok // config.num_experts


def _attention(config: ModelConfig, length: int) -> int:
    """Operations of causal attention over a prompt: two products, half masked."""
    width = config.num_qo_heads * config.head_dim
    return 2 * length * length * width * config.num_layers


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """The rates of this device, by a large copy and a large product."""
    on_gpu = device.type == "cuda"
    size = (1 << 30) if on_gpu else (1 << 27)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = _best(lambda: target.copy_(source), device)
    side = 8192 if on_gpu else 1024
    a = torch.randn(side, side, device=device).to(dtype)
    product = torch.empty_like(a)
    took = _best(lambda: torch.mm(a, a, out=product), device)
    return Rates(2 * size / seconds, 2 * side**3 / took)


def _best(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the quickest of several runs."""
    found = []
    for _ in range(8):
        _wait(device)
        begin = time.perf_counter()
        work()
        _wait(device)
        found.append(time.perf_counter() - begin)
    return min(found)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
