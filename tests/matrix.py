"""Settings of the engine in pairs: each pair that goes together, at least once.

python -m tests.matrix

`cover` chooses rows of settings, `run` answers the same requests with each row, and
what transformers answers decides. The GPU libraries are stand-ins, CUDA graphs are
emulated, ranks are processes.
"""

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from minisgl.distributed import DistributedInfo
from minisgl.scheduler import SchedulerConfig
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir
from tests.fakes.install import stand_ins
from tests.parity import first_difference, prompts, reference
from tests.tp import FORK, Job, do, start_driver
from tools.models import model_path

TOKENS, PROMPTS, BUDGET, SECONDS = 12, 4, 24, 300.0


class Row(NamedTuple):
    """Settings that are tried together.

    attention: a backend's name; fa2 and fa3 are fa with flash-attn 2 and 3.
    graph: whether decode steps are recorded and replayed.
    """

    model: str
    attention: str
    graph: bool
    ranks: int
    page: int
    cache: str
    overlap: bool


VALUES = Row(
    model=["qwen3", "qwen2", "llama3", "mistral", "qwen3-moe"],  # type: ignore[arg-type]
    attention=["torch", "fi", "fa2", "fa3", "fa3,fi"],  # type: ignore[arg-type]
    graph=[True, False],  # type: ignore[arg-type]
    ranks=[1, 2, 4],  # type: ignore[arg-type]
    page=[1, 16, 256],  # type: ignore[arg-type]
    cache=["radix", "naive"],  # type: ignore[arg-type]
    overlap=[True, False],  # type: ignore[arg-type]
)
HEADS = ["model", "attention", "graph", "ranks", "page", "cache", "overlap"]


def allowed(row: Row) -> bool:
    """flash-attn 2 reads pages of 256 tokens; FlashInfer has no heads of 48."""
    if row.model == "mistral" and row.attention.endswith("fi"):
        return False
    return row.attention != "fa2" or row.page == 256


def pairs(row: Row) -> set[tuple[int, Any, int, Any]]:
    """Every two of its settings."""
    two = combinations(enumerate(row), 2)
    return {(i, a, j, b) for (i, a), (j, b) in two}


def cover() -> list[Row]:
    """Few rows in which every pair occurs that occurs in any allowed row.

    The next row is always the one with most pairs that are not there yet (Cohen et
    al., "The AETG system", 1997); of equals the first.
    """
    left = [row for one in product(*VALUES) if allowed(row := Row(*one))]
    missing = set().union(*map(pairs, left))
    rows = []
    while missing:
        best = max(left, key=lambda row: len(pairs(row) & missing))
        rows.append(best)
        missing -= pairs(best)
    return rows


class Outcome(NamedTuple):
    """What rank 0 saw of a row; `error` if there was one.

    replays: steps that were replayed. cached: prompt tokens found in the cache.
    agree: whether all ranks sampled the same tokens.
    """

    answers: Sequence[Sequence[int]] = ()
    replays: int = 0
    cached: int = 0
    agree: bool = True
    error: str = ""


def job(model: str) -> Job:
    """Prompts that come one by one, then all of them once more."""
    several = prompts(model)
    # Two in a row: longer than a page of 16, and than a chunk.
    long = [several[i] + several[i + 1] for i in range(PROMPTS)]
    asked = [(ids, {"max_tokens": TOKENS}) for ids in long]
    return Job(asked * 2, at=[0, 1, 2, 5, 40, 40, 41, 44])


def config_of(row: Row) -> SchedulerConfig:
    """As rank 0 has it."""
    return SchedulerConfig(
        str(model_path(f"{row.model}-tiny")),
        DistributedInfo(0, row.ranks),
        "float32",
        device="cpu",
        attention_backend=row.attention.replace("2", "").replace("3", ""),
        page_size=row.page,
        num_page_override=max(16, 2048 // row.page),
        max_seq_len_override=256,
        max_running_req=8,
        max_extend_tokens=BUDGET,
        cuda_graph_max_bs=8 if row.graph else 0,
        cache_type=row.cache,
        overlap=row.overlap,
        offline_mode=True,
    )


def answer(row: Row, config: SchedulerConfig) -> dict[str, Any]:
    """In a rank: all answers, and what else an `Outcome` needs."""
    from tests.driver import Driver

    with stand_ins(hopper="fa2" not in row.attention):
        driver = Driver.__new__(Driver)
        start_driver(driver, config)
        engine = driver.scheduler.engine
        replays, replay = [], engine.graph_runner.replay

        def counted(batch: Any) -> Any:
            replays.append(batch.size)
            return replay(batch)

        engine.graph_runner.replay = counted  # type: ignore[method-assign]
        hits, match = [], driver.scheduler.cache_manager.match_req

        def noted(req: Any) -> Any:
            result = match(req)
            hits.append(result.cuda_handle.cached_len)
            return result

        driver.scheduler.cache_manager.match_req = noted  # type: ignore
        work = job(f"{row.model}-tiny")
        do(driver, work, 0)
        driver.assert_clean()
        driver.scheduler.shutdown()
        engine.shutdown()
        uids = range(len(work.requests))
        return {
            "answers": [driver.answers[uid] for uid in uids],
            "cached": sum(hits),
            "replays": len(replays),
        }


def _rank(rows: list[Row], configs: list[SchedulerConfig], out: str) -> None:
    """A process: its part of every row, one after the other."""
    torch.set_num_threads(1)
    found: list[Any] = []
    for row, config in zip(rows, configs, strict=True):
        try:
            found.append(answer(row, config))
        except Exception:
            found.append(traceback.format_exc())
            break  # the other ranks are out of step
    Path(out).write_text(json.dumps(found))


def run(rows: Sequence[Row]) -> Iterator[tuple[Row, Outcome]]:
    """The outcome of every row; rows of as many ranks share their processes."""
    for size in sorted({row.ranks for row in rows}):
        mine = [row for row in rows if row.ranks == size]
        with TemporaryDirectory() as folder:
            yield from zip(mine, _run_group(mine, size, folder), strict=True)


def _run_group(rows: list[Row], size: int, folder: str) -> list[Outcome]:
    configs = [config_of(row) for row in rows]
    for config in configs:
        make_socket_dir(config)
    outs = [Path(folder, f"{rank}.json") for rank in range(size)]
    ranks = []
    for rank, out in enumerate(outs):
        info = DistributedInfo(rank, size)
        own = [replace(config, tp_info=info) for config in configs]
        ranks.append(FORK.Process(target=_rank, args=(rows, own, str(out))))
    try:
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(SECONDS)
    finally:
        for process in ranks:
            process.kill()
            process.join()
        for config in configs:
            remove_socket_dir(config)
    notes = [json.loads(out.read_text()) for out in outs if out.exists()]
    return [_outcome([n[i : i + 1] for n in notes]) for i in range(len(rows))]


def _outcome(found: list[list[Any]]) -> Outcome:
    """What the ranks noted of one row."""
    said = [note for notes in found for note in notes]
    errors = [note for note in said if isinstance(note, str)]
    if errors or not said:
        return Outcome(error=errors[0] if errors else "a rank has died")
    agree = all(note["answers"] == said[0]["answers"] for note in said)
    return Outcome(**said[0], agree=agree)


def equal_tokens(row: Row, outcome: Outcome) -> tuple[int, int]:
    """Tokens up to the first that transformers does not answer, and all."""
    equal = total = 0
    model = f"{row.model}-tiny"
    asked = [ids for ids, _ in job(model).requests]
    for i, ids in enumerate(asked):
        expected = reference(model, ids, TOKENS).ids
        got = outcome.answers[i] if outcome.answers else []
        at = first_difference(got, expected)
        equal += len(expected) if at is None else at
        total += len(expected)
    return equal, total


def table(found: Sequence[tuple[Row, Outcome]]) -> str:
    """A line a row, and the sums."""
    shape = "{:11}{:11}{:7}{:7}{:6}{:7}{:9}{}"
    lines = [shape.format(*HEADS, "tokens equal")]
    sums = [0, 0]
    for row, outcome in found:
        equal, total = equal_tokens(row, outcome)
        sums = [sums[0] + equal, sums[1] + total]
        cells = ["on" if c is True else c or "off" for c in row]
        lines.append(shape.format(*map(str, cells), f"{equal} of {total}"))
    seen = set().union(*(pairs(row) for row, _ in found))
    lines.append(
        f"{len(found)} rows with {len(seen)} pairs of settings: "
        f"{sums[0]:,} of {sums[1]:,} tokens equal"
    )
    return "\n".join(lines)


def main() -> None:
    """Print the table; exit status 1 if a token differs."""
    found = list(run(cover()))
    print(table(found))
    for row, outcome in found:
        if outcome.error:
            print(row, outcome.error, file=sys.stderr)
    counts = [equal_tokens(row, outcome) for row, outcome in found]
    sys.exit(any(equal != total for equal, total in counts))


if __name__ == "__main__":
    main()
