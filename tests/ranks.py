"""One of several ranks, without an engine: it only receives, replies and notes."""

import json
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minisgl.message import BaseBackendMsg, DetokenizeMsg, ExitMsg, UserMsg
from minisgl.scheduler import SchedulerConfig
from minisgl.scheduler.io import SchedulerIOMixin


class Noting(SchedulerIOMixin):
    """Counts how often it was about to wait."""

    idle = 0

    def run_when_idle(self) -> None:
        self.idle += 1


def as_text(msg: BaseBackendMsg) -> str:
    return repr(msg.encoder())


def follow(
    config: SchedulerConfig, own_group: bool, late: float, out: str
) -> None:
    """Receive until ExitMsg; writes what came in which call to `out`, as JSON.

    A UserMsg stands for as many steps of work as it has max_tokens, in which the
    ranks do not wait for messages. They drift apart by random pauses.

    own_group: sync over a group made for it, else over the default one.
    late: seconds to sleep before the queues are opened and before the first sync.
    """
    info = config.tp_info
    where = f"file://{config.socket_dir.with_suffix('.store')}"
    dist.init_process_group(
        "gloo", init_method=where, rank=info.rank, world_size=info.size
    )
    group = dist.new_group(backend="gloo") if own_group else None
    time.sleep(late)
    io = Noting(config, group)
    time.sleep(late)
    came = time.time()
    io.sync_all_ranks()
    noted: dict[str, Any] = {"came": came, "left": time.time()}
    with torch.inference_mode():
        noted["steps"] = list(steps(io, info.rank))
    io.sync_all_ranks()
    io.close_queues()
    dist.destroy_process_group()
    noted["idle"] = io.idle
    Path(out).write_text(json.dumps(noted))


def steps(io: SchedulerIOMixin, rank: int):
    """The messages of each call, as texts."""
    work, rng, stopped = 0, random.Random(rank), False
    while not stopped:
        messages = io.receive_msg(True) if work == 0 else io.receive_msg()
        yield [as_text(msg) for msg in messages]
        work = max(0, work - 1)
        for msg in messages:
            if isinstance(msg, UserMsg):
                work = max(work, msg.sampling_params.max_tokens)
                io.send_result([DetokenizeMsg(msg.uid, rank, True, "stop")])
            stopped = stopped or isinstance(msg, ExitMsg)
        time.sleep(rng.choice([0, 0, 0.002]))
