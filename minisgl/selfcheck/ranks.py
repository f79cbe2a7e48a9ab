"""The same requests given to several ranks, a process each."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from queue import Empty
from typing import Any

from minisgl.distributed import DistributedInfo
from minisgl.scheduler import SchedulerConfig
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir
from minisgl.selfcheck.engine import answer
from minisgl.selfcheck.models import Ids

_SECONDS = 240.0


def _rank(
    config: SchedulerConfig, prompts: Sequence[Ids], results: Any
) -> None:
    results.put((config.tp_info.rank, answer(config, prompts)))


def answer_by_ranks(
    config: SchedulerConfig, size: int, prompts: Sequence[Ids]
) -> list[list[Ids]]:
    """The answers that each of `size` ranks has.

    Raises:
        RuntimeError: a rank ended without an answer, or none came in time.
    """
    # Spawned, not forked: a CUDA context does not survive a fork.
    start = multiprocessing.get_context("spawn")
    results = start.Queue()
    make_socket_dir(config)
    workers: list[Any] = []
    try:
        for rank in range(size):
            info = DistributedInfo(rank, size)
            own = replace(config, tp_info=info, distributed_timeout=_SECONDS)
            worker = start.Process(target=_rank, args=(own, prompts, results))
            worker.start()
            workers.append(worker)
        return _collect(workers, results)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
        remove_socket_dir(config)


def _collect(workers: list[Any], results: Any) -> list[list[Ids]]:
    found: dict[int, list[Ids]] = {}
    for _ in range(int(_SECONDS)):
        try:
            rank, answers = results.get(timeout=1.0)
            found[rank] = answers
        except Empty:
            codes = [w.exitcode for w in workers if w.exitcode]
            if codes:
                raise RuntimeError(f"a rank ended with {codes[0]}") from None
        if len(found) == len(workers):
            return [found[rank] for rank in sorted(found)]
    raise RuntimeError(f"no answer from the ranks in {_SECONDS:g} s")
