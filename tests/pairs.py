"""Few engines, in which any two settings that go together meet at least once.

`cover` chooses them, `run_all` lets each answer the same requests, and `table` shows
what came of it.
"""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from minisgl.distributed import DistributedInfo
from minisgl.scheduler import SchedulerConfig
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir
from tests.driver import Driver
from tests.fakes.install import stand_ins
from tests.parity import first_difference, prompts, reference
from tests.tp import FORK, start_driver
from tools.models import model_path

MODELS = ("qwen3-tiny", "qwen2-tiny", "llama3-tiny", "mistral-tiny")
WITH_EXPERTS = "qwen3-moe-tiny"
RECORDED = [1, 2, 4]
LENGTHS = (12, 5, 8, 10)
"""Tokens of the first answers, so that requests end one after the other."""


class Setup(NamedTuple):
    """An engine's settings. fa2 and fa3 are the versions of flash-attn."""

    attention: str
    graphs: str
    ranks: int
    page: int
    cache: str
    loop: str
    model: str


def factors(models: Sequence[str]) -> Setup:
    """The values of each setting, the cheapest first."""
    values: Any = (
        ("torch", "fi", "fa2", "fa3", "fa3,fi"),
        ("graphs", "eager"),
        (1, 2, 4),
        (1, 16, 256),
        ("radix", "naive"),
        ("overlap", "in turn"),
        tuple(models),
    )
    return Setup(*values)


def refusal(setup: Setup) -> str | None:
    """What an engine says that cannot be; None if it can."""
    if setup.attention == "fa2" and setup.page % 256:
        return "pages of 256 tokens or a multiple of that"
    if "fi" in setup.attention and setup.model == "mistral-tiny":
        return "head_dim of 64, 128, 256, not for 48"
    return None


def pairs_of(setup: Setup) -> set[tuple[tuple[int, Any], ...]]:
    """All pairs of (which setting, its value)."""
    return set(combinations(enumerate(setup), 2))


def valid(models: Sequence[str]) -> list[Setup]:
    """Every engine that can be."""
    every = (Setup(*values) for values in product(*factors(models)))
    return [setup for setup in every if refusal(setup) is None]


def cover(models: Sequence[str]) -> list[Setup]:
    """Engines that have every pair of settings which some engine can have.

    Greedy: the next one is that with most pairs which nobody had, and of these the one
    with the fewest ranks.
    """
    can = {setup: pairs_of(setup) for setup in valid(models)}
    missing = set().union(*can.values())
    chosen = []
    while missing:
        best = max(can, key=lambda s: (len(can[s] & missing), -s.ranks))
        missing -= can[best]
        chosen.append(best)
    return chosen


def cover_experts() -> list[Setup]:
    """Of a cover with one more model, that with experts, its engines."""
    every = cover((*MODELS, WITH_EXPERTS))
    return [setup for setup in every if setup.model == WITH_EXPERTS]


def config_of(setup: Setup, rank: int = 0, suffix: str = "") -> SchedulerConfig:
    """Of one rank; all of an engine have the same suffix."""
    named = {"_unique_suffix": suffix} if suffix else {}
    settings: dict[str, Any] = {
        "attention_backend": setup.attention.strip("23").replace("fa3", "fa"),
        "cuda_graph_bs": RECORDED if setup.graphs == "graphs" else [],
        "page_size": setup.page,
        "cache_type": setup.cache,
        "overlap": setup.loop == "overlap",
        "num_page_override": 4096 // setup.page,
        "max_seq_len_override": 256,
        "max_extend_tokens": 40,
        "device": "cpu",
        "offline_mode": True,
    }
    info = DistributedInfo(rank, setup.ranks)
    folder = str(model_path(setup.model))
    return SchedulerConfig(folder, info, "float32", **settings, **named)


def asked(model: str) -> list[list[int]]:
    """Four prompts, the longest again, and one that goes on from it."""
    found = prompts(model)[2:6]
    longest = max(found, key=len)
    return [*found, longest, longest + found[0]]


def answer(setup: Setup, config: SchedulerConfig) -> dict[str, Any]:
    """Let a new engine answer; what it said and how many steps were replays."""
    with stand_ins(hopper=setup.attention != "fa2"):
        driver = Driver.__new__(Driver)
        start_driver(driver, config)
        engine = driver.scheduler.engine
        replays: list[int] = []
        replay = engine.graph_runner.replay

        def counted(batch: Any) -> torch.Tensor:
            replays.append(batch.padded_size)
            return replay(batch)

        engine.graph_runner.replay = counted  # type: ignore[method-assign]
        for uid, (ids, length) in enumerate(
            zip(asked(setup.model), (*LENGTHS, 6, 6), strict=True)
        ):
            if uid == len(LENGTHS):
                driver.run()  # from here on there are prefixes to be found
            driver.submit(uid, ids, max_tokens=length)
            driver.step()
        driver.run()
        driver.assert_clean()
        driver.scheduler.shutdown()
        engine.shutdown()
    kind = type(engine.attn_backend).__name__
    return {
        "answers": [*driver.answers.values()],
        "replays": replays,
        "kind": kind,
    }


def as_rank(work: list[tuple[Setup, SchedulerConfig]], out: str) -> None:
    """In a process: be one rank of one engine after the other."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        noted = [answer(setup, config) for setup, config in work]
    Path(out).write_text(json.dumps(noted))


def over_ranks(
    setups: Sequence[Setup], out: Path
) -> list[list[dict[str, Any]]]:
    """What each rank noted of engines that all have as many ranks."""
    size = setups[0].ranks
    first = [config_of(setup) for setup in setups]
    work = [
        [
            (setup, config_of(setup, rank, config._unique_suffix))
            for setup, config in zip(setups, first, strict=True)
        ]
        for rank in range(size)
    ]
    outs = [out / f"{rank} of {size}.json" for rank in range(size)]
    ranks = [
        FORK.Process(target=as_rank, args=(own, str(path)))
        for own, path in zip(work, outs, strict=True)
    ]
    for config in first:
        make_socket_dir(config)
    try:
        for process in ranks:
            process.start()
        until = time.monotonic() + 60.0 + 40.0 * len(setups)
        for process in ranks:
            process.join(max(0.0, until - time.monotonic()))
        assert [process.exitcode for process in ranks] == [0] * size
    finally:
        for process in ranks:
            process.kill()
            process.join()
        for config in first:
            remove_socket_dir(config)
    return [json.loads(path.read_text()) for path in outs]


def run_all(
    setups: Sequence[Setup], out: Path
) -> Iterator[tuple[Setup, list[dict[str, Any]]]]:
    """Each engine and what its ranks noted, by the number of ranks."""
    for size in sorted({setup.ranks for setup in setups}):
        some = [setup for setup in setups if setup.ranks == size]
        if size == 1:
            for setup in some:
                yield setup, [answer(setup, config_of(setup))]
            continue
        yield from zip(
            some, zip(*over_ranks(some, out), strict=True), strict=True
        )


def differences(setup: Setup, answers: Sequence[Sequence[int]]) -> list[str]:
    """Where answers are not those of transformers."""
    found = []
    for number, (ids, got) in enumerate(
        zip(asked(setup.model), answers, strict=True)
    ):
        expected = reference(model_path(setup.model), ids, 64).ids[: len(got)]
        at = first_difference(got, expected)
        if at is not None:
            found.append(f"token {at} of answer {number}")
    return found


def line(setup: Setup, longest: int) -> str:
    """A row of the table, up to its last column; `longest` name of a model."""
    widths = (11, 8, 7, 6, 7, 9, longest + 2)
    cells = zip(map(str, setup), widths, strict=True)
    return "".join(cell.ljust(width) for cell, width in cells)


def show(setups: Sequence[Setup], out: Path) -> int:
    """Run them and print the table; how many were wrong."""
    met = set().union(*map(pairs_of, setups))
    longest = max(len(setup.model) for setup in setups)
    print(line(Setup(*Setup._fields), longest), "tokens", sep="")
    total = wrong = 0
    for setup, ranks in run_all(setups, out):
        answers = ranks[0]["answers"]
        found = differences(setup, answers)
        if any(noted["answers"] != answers for noted in ranks):
            found.append("ranks differ")
        count = sum(map(len, answers))
        total, wrong = total + count, wrong + bool(found)
        text = "; ".join(found) or f"{count} equal"
        print(line(setup, longest), text, sep="", flush=True)
    print(f"{len(setups)} engines, {len(met)} pairs, {total} tokens")
    print("wrong:", wrong or "none")
    return wrong
