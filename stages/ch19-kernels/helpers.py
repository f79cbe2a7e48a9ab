"""What main.py shows, computed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

from minisgl.kernel import index, store
from minisgl.kernel.index import indexing, indexing_torch
from minisgl.kernel.store import store_cache, store_cache_torch
from tools.stagekit import encode_chat, load_tokenizer, measured

TOKENS, ROWS = 70, 90


class Counted:
    """Inside, counts the kernels that are launched."""

    def __enter__(self) -> Self:
        self.store = self.index = 0
        self._was = store.check_launch, index.check_launch
        store.check_launch = self._count
        index.check_launch = self._count
        return self

    def __exit__(self, *error: object) -> None:
        store.check_launch, index.check_launch = self._was

    def _count(self, name: str, status: int) -> None:
        self._was[0](name, status)
        setattr(self, name, getattr(self, name) + 1)

    def steps(self, llm: Any) -> int:
        """Every layer stores once a step."""
        return self.store // int(llm.engine.ctx.kv_cache.num_layers)

    def __str__(self) -> str:
        return f"{self.store} stores, {self.index} lookups"


def store_case(heads: int, dim: int, dtype: torch.dtype) -> Callable[[], str]:
    """Both ways to store TOKENS rows out of order, rows of a larger product."""

    def compare() -> str:
        mine, torchs = torch.zeros(2, 2, ROWS, heads, dim, dtype=dtype)
        row = heads * dim
        qkv = torch.randn(TOKENS, 4 * row).to(dtype)
        slots = torch.randperm(ROWS, dtype=torch.int32)[:TOKENS]
        given = (slots, qkv[:, 2 * row : 3 * row], qkv[:, 3 * row :])
        with _Seen(store, "_jit_store_module") as seen:
            store_cache(*mine, *given)
        store_cache_torch(*torchs, *given)
        return _line(seen, "all", torch.equal(mine, torchs))

    return compare


def index_case(
    dim: int, dtype: torch.dtype, ids: tuple[int, int] | None = None
) -> Callable[[], str]:
    """Both ways to look TOKENS ids up; the table may hold some ids only."""

    def compare() -> str:
        first, last = ids or (0, ROWS)
        table = torch.randn(last - first, dim).to(dtype)
        wanted = torch.randint(0, ROWS, (TOKENS,), dtype=torch.int32)
        if ids is None:
            wanted %= last
        with _Seen(index, "_jit_index_module") as seen:
            mine = indexing(table, wanted, vocab_range=ids)
        same = torch.equal(mine, indexing_torch(table, wanted, ids))
        return _line(seen, f"{first}-{last - 1}" if ids else "all", same)

    return compare


class _Seen:
    """Inside, notes for what shape a kernel was asked."""

    def __init__(self, module: Any, name: str) -> None:
        self._module, self._name = module, name

    def __enter__(self) -> Self:
        self._was = getattr(self._module, self._name)

        def noted(size: int, **other: Any) -> Any:
            self.size, self.other = size, other
            return self._was(size, **other)

        setattr(self._module, self._name, noted)
        return self

    def __exit__(self, *error: object) -> None:
        setattr(self._module, self._name, self._was)


def _line(seen: _Seen, ids: str, same: bool) -> str:
    warps = seen.other.get("num_splits", 1)
    return f"{seen.size:6,}{seen.other['word']:7}{warps:7}  {ids:6} {same}"


def timed(work: Callable[..., object], *args: object) -> str:
    """The least mean of a call over ten rounds."""
    rounds = []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(300):
            work(*args)
        rounds.append((time.perf_counter() - start) / 300)
    return measured(min(rounds) * 1e6, "us")


def question_ids(path: Path) -> list[list[int]]:
    """Three questions of uneven length."""
    tokenizer = load_tokenizer(path)
    asked = ["Hi!", "What is 2+2?", "Explain why the sky is blue."]
    return [encode_chat(tokenizer, text) for text in asked]
