"""How fast the radix cache is: requests that share prefixes, a pool that is too small.

python tools/bench_radix.py --requests 10000 --length 512

Every request matches, locks what it found, makes room, inserts and unlocks, as under
a scheduler but without a model. Times are CPU times of the cache's own calls. A second,
shorter pass counts its work; counting is not in the times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Annotated, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [
    p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"
]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import typer  # noqa: E402

from tools.stagekit import measured  # noqa: E402

if TYPE_CHECKING:
    from minisgl.kvcache.radix_cache import RadixPrefixCache

FAMILIES, MEMBERS = 16, 16


@dataclass
class Result:
    """What a run cost; `seconds` and `calls` by the name of the operation."""

    tokens: int = 0
    hits: int = 0
    requests: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    compared: int = 0
    nodes: int = 0
    queued: int = 0
    victims: int = 0

    @property
    def hit_rate(self) -> float:
        return self.hits / self.tokens

    @property
    def compared_per_token(self) -> float:
        """Comparisons of two tokens, for each token of the prompts."""
        return self.compared / self.tokens

    @property
    def nodes_per_request(self) -> float:
        """Nodes whose tokens were looked at."""
        return self.nodes / self.requests

    @property
    def popped_per_victim(self) -> float:
        """Entries of the eviction queue made for each node it gave up."""
        return self.queued / max(self.victims, 1)

    def timed(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        start = thread_time()
        result = call(*args)
        self.seconds[name] = self.seconds.get(name, 0.0) + thread_time() - start
        self.calls[name] = self.calls.get(name, 0) + 1
        return result


def prompts(requests: int, length: int, seed: int) -> Iterator[torch.Tensor]:
    """Quarters: one for all, one of 16 families, one of 16 members, one's own."""
    rng = np.random.default_rng(seed)
    part = length // 4

    def draw(*shape: int) -> np.ndarray:
        return rng.integers(0, 32000, shape, dtype=np.int32)

    first, second = draw(part), draw(FAMILIES, part)
    third = draw(FAMILIES, MEMBERS, part)
    for _ in range(requests):
        f, m = rng.integers(FAMILIES), rng.integers(MEMBERS)
        own = draw(length - 3 * part)
        yield torch.from_numpy(
            np.concatenate([first, second[f], third[f, m], own])
        )


def measure(
    requests: int,
    length: int,
    pages: int,
    page_size: int = 1,
    seed: int = 0,
    count: bool = True,
) -> Result:
    """Serve the requests from a pool of `pages`; `count` the work instead of time."""
    from minisgl.core import Context, set_global_ctx
    from minisgl.kvcache.radix_cache import RadixPrefixCache

    set_global_ctx(Context(page_size))
    cache, result = RadixPrefixCache(torch.device("cpu")), Result()
    free = torch.arange(pages * page_size, dtype=torch.int32)
    with _counting(cache, result) if count else _nothing():
        for ids in prompts(requests, length, seed):
            free = _serve(cache, ids, free, result)
    cache.check_integrity()
    assert len(free) + cache.size_info.total_size == pages * page_size
    return result


def _serve(
    cache: RadixPrefixCache,
    ids: torch.Tensor,
    free: torch.Tensor,
    result: Result,
) -> torch.Tensor:
    """One request, from its match to its end; returns the slots now free."""
    timed = result.timed
    old = timed("match", cache.match_prefix, ids[:-1]).cuda_handle
    timed("lock", cache.lock_handle, old)
    whole = len(ids) // cache.page_size * cache.page_size
    needed = whole - old.cached_len
    if needed > len(free):
        freed = timed("evict", cache.evict, needed - len(free))
        free = torch.cat([free, freed])
    row = torch.cat([old.get_matched_indices(), free[:needed]])
    known, new = timed("insert", cache.insert_prefix, ids[:whole], row)
    timed("lock", cache.lock_handle, new)
    timed("lock", cache.lock_handle, old, True)
    timed("lock", cache.lock_handle, new, True)
    result.tokens += len(ids)
    result.hits += old.cached_len
    result.requests += 1
    return torch.cat([row[old.cached_len : known], free[needed:]])


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _counting(cache: RadixPrefixCache, result: Result) -> Iterator[None]:
    from minisgl.kvcache.radix_tree import RadixTreeNode

    compare, victim = RadixTreeNode.get_match_len, cache._next_victim
    enqueue = cache._enqueue

    def counted_compare(node: RadixTreeNode, ids: torch.Tensor) -> int:
        result.compared += min(node.length, len(ids))
        result.nodes += 1
        return compare(node, ids)

    def counted_victim() -> RadixTreeNode:
        result.victims += 1
        return victim()

    def counted_enqueue(node: RadixTreeNode) -> None:
        before = len(cache._queue)
        enqueue(node)
        result.queued += len(cache._queue) - before

    RadixTreeNode.get_match_len = counted_compare  # type: ignore
    cache._next_victim = counted_victim  # type: ignore[method-assign]
    cache._enqueue = counted_enqueue  # type: ignore[method-assign]
    try:
        yield
    finally:
        RadixTreeNode.get_match_len = compare  # type: ignore[method-assign]


def main(
    requests: Annotated[int, typer.Option(min=1)] = 10_000,
    length: Annotated[
        list[int] | None, typer.Option(help="Again for more.")
    ] = None,
    page_size: Annotated[int, typer.Option(min=1)] = 1,
    pool: Annotated[int, typer.Option(help="Prompts that fit.", min=2)] = 128,
    seed: int = 0,
) -> None:
    """Print operations per second, and the work for each token of a prompt."""
    torch.set_num_threads(1)
    print(
        f"{requests:,} requests, pages of {page_size}, room for {pool} prompts"
    )
    print(
        "length  hits  compared  nodes  operations/s, us of match, insert, evict"
    )
    for n in length or [256, 512, 1024]:
        if n < 4:
            raise SystemExit("error: --length must be at least 4")
        pages = pool * -(-n // page_size)
        run = measure(requests, n, pages, page_size, seed, count=False)
        work = measure(min(requests, 1000), n, pages, page_size, seed)
        print(_row(n, run, work))
    print(
        "compared: tokens for each token of a prompt; nodes: for each request"
    )
    print("an operation: a match, an insert or an evict; mean CPU time of each")


def _row(length: int, run: Result, work: Result) -> str:
    timed = [name for name in ("match", "insert", "evict") if name in run.calls]
    rate = sum(run.calls[n] for n in timed) / sum(run.seconds[n] for n in timed)
    times = [1e6 * run.seconds[name] / run.calls[name] for name in timed]
    shown = [measured(rate, "", 0), *(measured(time, "") for time in times)]
    row = f"{length:6}{run.hit_rate:6.0%}{work.compared_per_token:10.2f}"
    row += f"{work.nodes_per_request:7.1f}  "
    return row + " ".join(value.strip() for value in shown)


if __name__ == "__main__":
    typer.run(main)
