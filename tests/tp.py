"""Engines of several ranks: a process each, with the same work, which is noted.

A `Job` is a list of requests that a scheduler of every rank is given, in the same
order and the same step. `run_ranks` starts the ranks, lets each do all jobs with one
engine, and returns what each of them noted.
"""

import json
import multiprocessing
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch

from minisgl.distributed import DistributedInfo
from minisgl.scheduler import SchedulerConfig
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir

# Forked from one process that has imported what takes long, ranks start at once.
# Nothing of ours: that process may look for it in another folder.
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["torch", "transformers.models.auto"])
SECONDS = 120.0


@dataclass
class Job:
    """Requests: (prompt, settings of `Driver.submit`), given before step `at`."""

    requests: list[tuple[list[int], dict[str, Any]]]
    at: list[int] = field(default_factory=list)
    abort_at: dict[int, int] = field(default_factory=dict)


def work(
    config: SchedulerConfig, jobs: list[Job], out: str, scheduler: str
) -> None:
    """In a rank: do all jobs and write down what happened."""
    try:
        notes = do_all(config, jobs, scheduler)
    except BaseException:
        Path(out).write_text(json.dumps(traceback.format_exc()))
        raise
    Path(out).write_text(json.dumps(notes))


def do_all(
    config: SchedulerConfig, jobs: list[Job], scheduler: str
) -> dict[str, Any]:
    """In a rank: do all jobs with one engine; what happened."""
    from minisgl.engine import Engine
    from tests.driver import Driver

    torch.set_num_threads(1)
    driver = Driver.__new__(Driver)
    free = (20 << 20) * (1 + config.tp_info.rank)
    if config.num_page_override is None:  # the ranks have unequal memory
        Engine._free_memory = lambda self: free  # type: ignore[method-assign]
    start_driver(driver, config, scheduler)
    engine = driver.scheduler.engine
    sampled: list[list[int]] = []
    sample = engine.sampler.sample

    def noted(*args: Any) -> torch.Tensor:
        tokens = sample(*args)
        sampled.append(tokens.tolist())
        return tokens

    engine.sampler.sample = noted  # type: ignore[method-assign]
    results = []
    for number, job in enumerate(jobs):
        do(driver, job, 100 * number)
        driver.assert_clean()
        answers = [
            driver.answers[100 * number + i] for i in range(len(job.requests))
        ]
        results.append({"answers": answers, "sampled": list(sampled)})
        sampled.clear()
    weights = engine.model.state_dict().values()
    cache = driver.scheduler.cache_manager.prefix_cache
    notes = {
        "jobs": results,
        "loaded": getattr(cache, "loaded_tokens", 0),
        "free": free,
        "pages": engine.num_pages,
        "weights": sum(w.numel() for w in weights),
        "kv": list(engine.ctx.kv_cache.k_cache(0).shape),
    }
    driver.scheduler.shutdown()
    engine.shutdown()
    return notes


def start_driver(
    driver: Any,
    config: SchedulerConfig,
    scheduler: str = "minisgl.scheduler:Scheduler",
) -> None:
    """As `Driver.__init__`, for a configuration that is there already."""
    driver.folder, driver.by_step, driver.data = config.model_path, True, None
    driver.scheduler = resolve_name(scheduler)(config)
    driver.prompts, driver.answers, driver.ended = {}, {}, {}
    driver.steps = []
    driver._log_steps()


def do(driver: Any, job: Job, first: int) -> None:
    """Step until all is done; requests come when their step does."""
    left = [
        (job.at[i] if job.at else 0, first + i, ids, settings)
        for i, (ids, settings) in enumerate(job.requests)
    ]
    for step in range(2000):
        for at, uid, ids, settings in left:
            if at == step:
                driver.submit(uid, ids, **settings)
        for uid, at in job.abort_at.items():
            if at == step:
                driver.abort(first + uid)
        if driver.idle and all(at <= step for at, *_ in left):
            return
        driver.step()
    raise AssertionError("not idle after 2000 steps")


def run_ranks(
    folder: Path,
    size: int,
    jobs: Sequence[Job],
    out: Path,
    scheduler: str = "minisgl.scheduler:Scheduler",
    **settings: Any,
) -> list[dict[str, Any]]:
    """What each rank noted. All processes are gone when this returns.

    scheduler: the class of theirs, as module:name.
    """
    settings = {"num_page_override": 2048, "device": "cpu"} | settings
    config = SchedulerConfig(
        str(folder),
        DistributedInfo(0, size),
        "float32",
        offline_mode=True,
        **settings,
    )
    make_socket_dir(config)
    out.mkdir(parents=True, exist_ok=True)
    outs = [out / f"{rank}.json" for rank in range(size)]
    ranks = []
    for rank, path in enumerate(outs):
        own = replace(config, tp_info=DistributedInfo(rank, size))
        args = (own, list(jobs), str(path), scheduler)
        ranks.append(FORK.Process(target=work, args=args))
    try:
        for process in ranks:
            process.start()
        until = time.monotonic() + SECONDS
        for process in ranks:
            process.join(max(0.0, until - time.monotonic()))
        said = [path.read_text() for path in outs if path.exists()]
        codes = [process.exitcode for process in ranks]
        assert codes == [0] * size, "\n".join(map(str, [codes, *said]))
    finally:
        for process in ranks:
            process.kill()
            process.join()
        remove_socket_dir(config)
    return [json.loads(path.read_text()) for path in outs]
