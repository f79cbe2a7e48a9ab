"""The ranks that main.py starts, a process each."""

import multiprocessing
import os
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from minisgl.core import SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.message import UserMsg
from minisgl.scheduler import Scheduler, SchedulerConfig
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir


class Noted(NamedTuple):
    """What one rank has: sizes in KiB, tokens by request, ms a token."""

    weights: float
    kv_token: float
    answers: dict[int, list[int]]
    pace: float


def answer(
    config: SchedulerConfig, prompts: list[list[int]], params: SamplingParams
) -> Noted:
    """In a rank: answer all prompts together, as every other rank does."""
    torch.set_num_threads(1)
    scheduler = Scheduler(config)
    engine = scheduler.engine
    for uid, ids in enumerate(prompts):
        ids32 = torch.tensor(ids, dtype=torch.int32)
        scheduler.inbox.append(UserMsg(uid, ids32, params))
    answers: dict[int, list[int]] = {uid: [] for uid in range(len(prompts))}
    times = []
    with torch.inference_mode():
        while scheduler.inbox or scheduler.has_work:
            start = perf_counter()
            scheduler.normal_loop()
            times.append(1000 * (perf_counter() - start))
            for msg in scheduler.outbox:
                answers[msg.uid].append(msg.next_token)
            scheduler.outbox.clear()
    weights = sum(w.nbytes for w in engine.model.state_dict().values())
    pool = engine.ctx.kv_cache.k_cache(0)[0]
    token = 2 * engine.ctx.kv_cache.num_layers * pool.nbytes
    scheduler.shutdown()
    engine.shutdown()
    pace = sorted(times)[len(times) // 2]
    return Noted(weights / 1024, token / 1024, answers, pace)


def _work(
    config: SchedulerConfig,
    prompts: list[list[int]],
    params: SamplingParams,
    pipe: Connection,
) -> None:
    try:
        pipe.send(answer(config, prompts, params))
    except Exception as error:
        pipe.send(error)


def run_ranks(
    folder: Path, size: int, prompts: list[list[int]], params: SamplingParams
) -> list[Noted]:
    """What each of `size` ranks noted.

    Raises:
        ValueError: the ranks refused the model.
    """
    os.environ["LOG_LEVEL"] = "WARNING"
    config = SchedulerConfig(
        str(folder),
        DistributedInfo(0, size),
        "float32",
        device="cpu",
        num_page_override=1024,
        offline_mode=True,
    )
    context = multiprocessing.get_context("spawn")
    make_socket_dir(config)
    processes, pipes = [], []
    for rank in range(size):
        own = replace(config, tp_info=DistributedInfo(rank, size))
        ours, theirs = context.Pipe(duplex=False)
        args = (own, prompts, params, theirs)
        processes.append(context.Process(target=_work, args=args))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        found = [pipe.recv() for pipe in pipes]
    finally:
        for process in processes:
            process.join(10)
            process.kill()
        remove_socket_dir(config)
    for result in found:
        if isinstance(result, Exception):
            raise result
    return found
