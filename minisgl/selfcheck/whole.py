"""Whole models: against transformers, and with one setting changed."""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from typing import Any

import torch

from minisgl.attention import SUPPORTED_ATTENTION_BACKENDS
from minisgl.selfcheck.engine import (
    NEAR,
    TOKENS,
    answer,
    compare,
    compare_runs,
    make_config,
    make_prompts,
)
from minisgl.selfcheck.models import (
    KINDS,
    Ids,
    Reference,
    find_model,
    transformers_answers,
)
from minisgl.selfcheck.ranks import answer_by_ranks
from minisgl.selfcheck.report import Check, Setting, Skip


@cache
def _reference(
    setting: Setting, kind: str, dtype: torch.dtype
) -> list[Reference]:
    folder = find_model(kind, setting.models)
    return transformers_answers(
        folder, make_prompts(), TOKENS, setting.device, dtype
    )


def _run(setting: Setting, kind: str, **settings: Any) -> list[Ids]:
    folder = find_model(kind, setting.models)
    config = make_config(folder, setting.device, **settings)
    return answer(config, make_prompts())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bounds(kind: str, dtype: torch.dtype) -> tuple[float, int]:
    """How close a choice must be to go either way; answers without that bound.

    Rounding may send a token to another expert where two are nearly equal.
    What follows is another layer, and no bound on logits holds; with 8 answers
    it happens to one at most.
    """
    experts = "moe" in kind and dtype != torch.float32
    return NEAR[dtype] * (2 if experts else 1), int(experts)


def parity(
    setting: Setting, kind: str, dtype: torch.dtype, **settings: Any
) -> str:
    """The engine's tokens are those of transformers in the same dtype."""
    try:
        got = _run(setting, kind, dtype=_name(dtype), **settings)
    except ValueError as error:
        _, refused, reason = str(error).partition("cannot be used: ")
        if not refused:
            raise
        raise Skip(reason) from error
    return compare(got, _reference(setting, kind, dtype), *_bounds(kind, dtype))


def on_and_off(
    setting: Setting,
    kind: str,
    dtype: torch.dtype,
    off: dict[str, Any],
    on: dict[str, Any],
) -> str:
    """The answers do not depend on a setting."""
    usual = {"dtype": _name(dtype)}
    one, other = (_run(setting, kind, **usual | s) for s in (off, on))
    reference = _reference(setting, kind, dtype)
    return compare_runs(one, other, reference, *_bounds(kind, dtype))


def graph(setting: Setting, kind: str) -> str:
    """Recorded steps give what launched ones give; a CPU emulates recording."""
    on_gpu = setting.device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    off, on = {"cuda_graph_max_bs": 0}, {"cuda_graph_max_bs": 8}
    return on_and_off(setting, kind, dtype, off, on)


def overlap(setting: Setting) -> str:
    """Launching ahead changes no token."""
    exact = {"attention_backend": "torch"}
    off, on = exact | {"overlap": False}, exact | {"overlap": True}
    return on_and_off(setting, "qwen3", torch.float32, off, on)


def ranks(
    setting: Setting, kind: str, dtype: torch.dtype, **settings: Any
) -> str:
    """Two ranks give what transformers does, and both the same."""
    count = torch.cuda.device_count()
    if setting.device.type == "cuda" and count < 2:
        raise Skip(f"{count} GPU; two are needed")
    folder = find_model(kind, setting.models)
    usual = {"dtype": _name(dtype)} | settings
    config = make_config(folder, setting.device, **usual)
    answers = answer_by_ranks(config, 2, make_prompts())
    assert answers[0] == answers[1], "the ranks' tokens differ"
    reference = _reference(setting, kind, dtype)
    return compare(answers[0], reference, *_bounds(kind, dtype))


def _attention_checks() -> dict[str, Check]:
    """Each backend that is not torch's, and two of them together."""
    names = SUPPORTED_ATTENTION_BACKENDS.supported_names()
    gpu = [name for name in names if name != "torch"]
    pairs = [*gpu, *(["fa,fi"] if {"fa", "fi"} <= set(gpu) else [])]
    checks: dict[str, Check] = {}
    for name, kind in product(pairs, ("qwen3", "llama")):
        # flash-attn 2 has pages of 256 and multiples of it.
        size = 16 if name == "fi" else 256
        checks[f"bf16: {kind}, {name}, page {size}"] = partial(
            parity,
            kind=kind,
            dtype=torch.bfloat16,
            attention_backend=name,
            page_size=size,
        )
    return checks


def whole_checks(setting: Setting) -> dict[str, Check]:
    """The checks of this file that make sense for the device."""
    cuda = setting.device.type == "cuda"
    torchs: dict[str, Any] = {"attention_backend": "torch"}
    exact = torchs | {"dtype": torch.float32}
    half = torchs | {"dtype": torch.bfloat16}
    # All that `auto` chooses, with steps recorded.
    auto: dict[str, Any] = {"dtype": torch.bfloat16, "cuda_graph_max_bs": None}
    checks: dict[str, Check] = {
        f"float32: {kind}": partial(parity, kind=kind, **exact)
        for kind in KINDS
    }
    if cuda:
        checks["float32: qwen3_moe, fused"] = partial(
            parity, kind="qwen3_moe", moe_backend="fused", **exact
        )
    checks |= _attention_checks() | {"overlap on and off": overlap}
    for kind in ("qwen3", "qwen3_moe"):
        checks[f"bf16: {kind}, torch"] = partial(parity, kind=kind, **half)
        checks[f"graph and eager: {kind}"] = partial(graph, kind=kind)
        checks[f"two ranks: {kind}"] = partial(ranks, kind=kind, **exact)
        if cuda:
            name = f"{kind}, as chosen"
            checks[f"bf16: {name}"] = partial(parity, kind=kind, **auto)
            checks[f"two ranks: {name}"] = partial(ranks, kind=kind, **auto)
    return checks
