"""Others that answer the same requests, in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minisgl.benchmark.subject import Run
from minisgl.benchmark.workload import Request
from minisgl.utils import div_ceil

Peer = Callable[[Any, Sequence[Request], float, int], Run]
"""Takes transformers' model, requests, a temperature, and how many at once."""

_PAGE = 256
"""Tokens a page of transformers' cache holds."""


def static_batches(
    hf: Any, requests: Sequence[Request], temperature: float, at_once: int
) -> Run:
    """transformers' `generate`: left-padded batches in the order of arrival.

    A batch runs until its longest answer is done; what nobody asked for is
    dropped.
    """
    answers, begin = [], time.perf_counter()
    for first in range(0, len(requests), at_once):
        batch = requests[first : first + at_once]
        longest = max(len(r.prompt) for r in batch)
        pads = [longest - len(r.prompt) for r in batch]
        padded = zip(pads, batch, strict=True)
        ids = torch.tensor([[0] * pad + r.prompt for pad, r in padded])
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
        out = hf.generate(
            ids.to(hf.device),
            attention_mask=mask.to(hf.device),
            generation_config=_settings(
                temperature, max(r.output for r in batch)
            ),
        )
        rows = zip(out[:, longest:].tolist(), batch, strict=True)
        answers += [row[: r.output] for row, r in rows]
    return Run(time.perf_counter() - begin, answers)


def one_by_one(
    hf: Any, requests: Sequence[Request], temperature: float, at_once: int
) -> Run:
    """transformers' `generate`, one request after another."""
    del at_once
    return static_batches(hf, requests, temperature, 1)


def continuous_batching(
    hf: Any, requests: Sequence[Request], temperature: float, at_once: int
) -> Run:
    """transformers' own continuous batching.

    Raises:
        RuntimeError: it does not work here; the reason is told.
    """
    answers: dict[str, list[int]] = {}
    longest = max(r.output for r in requests)
    manager = hf.init_continuous_batching(
        generation_config=_settings(temperature, longest),
        continuous_batching_config=_pool(hf, requests, at_once),
    )
    try:
        manager.warmup()
        manager.start()
        begin = time.perf_counter()
        for number, r in enumerate(requests):
            manager.add_request(
                r.prompt, request_id=str(number), max_new_tokens=r.output
            )
        while len(answers) < len(requests):
            result = manager.get_result(timeout=1)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError("its thread has ended")
            elif result.error is not None:
                raise RuntimeError(result.error)
            elif result.is_finished():
                answers[result.request_id] = list(result.generated_tokens)
        seconds = time.perf_counter() - begin
    finally:
        manager.stop(block=True, timeout=5)
        manager.destroy()
    return Run(seconds, [answers[str(i)] for i in range(len(requests))])


def _pool(hf: Any, requests: Sequence[Request], at_once: int) -> Any:
    """Its settings: its own on a GPU; a CPU's memory it cannot judge."""
    from transformers import ContinuousBatchingConfig

    config = ContinuousBatchingConfig(
        page_size=_PAGE, max_requests_per_batch=at_once
    )
    if hf.device.type == "cpu":
        longest = max(len(r.prompt) + r.output for r in requests)
        config.num_blocks = min(at_once, len(requests)) * (
            1 + div_ceil(longest, _PAGE)
        )
        config.max_batch_tokens = 512
    return config


def _settings(temperature: float, tokens: int) -> Any:
    """What transformers is told: nothing but these, and no end token."""
    from transformers import GenerationConfig

    sampling: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
    return GenerationConfig(max_new_tokens=tokens, pad_token_id=0, **sampling)


PEERS: dict[str, Peer] = {
    "static": static_batches,
    "continuous": continuous_batching,
    "one-by-one": one_by_one,
}
