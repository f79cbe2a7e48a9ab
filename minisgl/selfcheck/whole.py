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
    has_setting,
    make_config,
    make_prompts,
)
from minisgl.selfcheck.models import Ids, Reference, transformers_answers
from minisgl.selfcheck.ranks import answer_by_ranks
from minisgl.selfcheck.report import Check, Setting, Skip


@cache
def _reference(
    setting: Setting, kind: str, dtype: torch.dtype
) -> list[Reference]:
    return transformers_answers(
        setting.models / kind, make_prompts(), TOKENS, setting.device, dtype
    )


def _run(setting: Setting, kind: str, **settings: Any) -> list[Ids]:
    config = make_config(setting.models / kind, setting.device, **settings)
    return answer(config, make_prompts())


def parity(
    setting: Setting, kind: str, dtype: torch.dtype, **settings: Any
) -> str:
    """The engine's tokens are those of transformers in the same dtype."""
    name = str(dtype).removeprefix("torch.")
    try:
        got = _run(setting, kind, dtype=name, **settings)
    except ValueError as error:
        _, refused, reason = str(error).partition("cannot be used: ")
        if not refused:
            raise
        raise Skip(reason) from error
    near = NEAR[dtype]
    if "moe" in kind and dtype != torch.float32:
        # Rounding may send a token to another expert, which is a larger step.
        near *= 3
    return compare(got, _reference(setting, kind, dtype), near)


def on_and_off(
    setting: Setting,
    name: str,
    off: dict[str, Any],
    on: dict[str, Any],
    dtype: torch.dtype,
) -> str:
    """The answers do not depend on a setting.

    name: the setting's field, without which there is nothing to check.
    """
    if not has_setting(name):
        raise Skip(f"there is no setting {name}")
    usual = {"dtype": str(dtype).removeprefix("torch.")}
    one, other = (_run(setting, "qwen3", **usual | s) for s in (off, on))
    reference = _reference(setting, "qwen3", dtype)
    return compare_runs(one, other, reference, NEAR[dtype])


def graph(setting: Setting) -> str:
    """CUDA graphs give what eager steps give."""
    if setting.device.type != "cuda":
        raise Skip("no CUDA device")
    off, on = {"cuda_graph_max_bs": 0}, {"cuda_graph_max_bs": 8}
    return on_and_off(setting, "cuda_graph_max_bs", off, on, torch.bfloat16)


def overlap(setting: Setting) -> str:
    """Launching ahead changes no token."""
    exact = {"attention_backend": "torch"}
    off, on = exact | {"overlap": False}, exact | {"overlap": True}
    return on_and_off(setting, "overlap", off, on, torch.float32)


def ranks(setting: Setting, kind: str) -> str:
    """Two ranks give what one does, and both the same."""
    count = torch.cuda.device_count()
    if setting.device.type == "cuda" and count < 2:
        raise Skip(f"{count} GPU; two are needed")
    folder, exact = setting.models / kind, {"attention_backend": "torch"}
    config = make_config(folder, setting.device, **exact)
    answers = answer_by_ranks(config, 2, make_prompts())
    assert answers[0] == answers[1], "the ranks' tokens differ"
    reference = _reference(setting, kind, torch.float32)
    return compare(answers[0], reference, NEAR[torch.float32])


def whole_checks(setting: Setting) -> dict[str, Check]:
    """The checks of this file that make sense for the device."""
    cuda = setting.device.type == "cuda"
    exact, bf16 = torch.float32, torch.bfloat16
    plain: dict[str, Any] = {"attention_backend": "torch"}
    checks: dict[str, Check] = {
        f"float32: {kind}": partial(parity, kind=kind, dtype=exact, **plain)
        for kind in ("qwen3", "qwen2", "llama", "qwen3_moe")
    }
    if cuda:
        checks["float32: qwen3_moe, fused"] = partial(
            parity, kind="qwen3_moe", dtype=exact, moe_backend="fused", **plain
        )
    for kind in ("qwen3", "qwen3_moe"):
        checks[f"bf16: {kind}, torch"] = partial(
            parity, kind=kind, dtype=bf16, **plain
        )
    names = SUPPORTED_ATTENTION_BACKENDS.supported_names()
    gpu = [name for name in names if name != "torch"]
    pairs = [*gpu, *(["fa,fi"] if {"fa", "fi"} <= set(gpu) else [])]
    for name, kind in product(pairs, ("qwen3", "llama")):
        # flash-attn 2 has pages of 256 and multiples of it.
        size = 16 if name == "fi" else 256
        checks[f"bf16: {kind}, {name}, page {size}"] = partial(
            parity,
            kind=kind,
            dtype=bf16,
            attention_backend=name,
            page_size=size,
        )
    if cuda:
        checks["bf16: qwen3_moe, as chosen"] = partial(
            parity, kind="qwen3_moe", dtype=bf16
        )
    checks |= {"overlap on and off": overlap, "graph and eager": graph}
    for kind in ("qwen3", "qwen3_moe"):
        checks[f"two ranks: {kind}"] = partial(ranks, kind=kind)
    return checks
