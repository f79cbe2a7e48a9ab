"""Random requests on a small pool; some are aborted, some fail."""

import random
from collections.abc import Iterator

import torch

from minisgl.core import Batch, SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.engine.sample import LogitsEdit
from minisgl.message import AbortBackendMsg, DetokenizeMsg, UserMsg
from minisgl.scheduler import Scheduler, SchedulerConfig
from tools.stagekit import model_path
from tools.zoo.places import ModelError

COUNT = 40


def start(model: str, device: str, pages: int, page_size: int) -> Scheduler:
    """A scheduler in float32 with so many pages."""
    try:
        return Scheduler(
            SchedulerConfig(
                model_path=str(model_path(model)),
                tp_info=DistributedInfo(0, 1),
                dtype="float32",
                device=device,
                page_size=page_size,
                num_page_override=pages,
            )
        )
    except (ModelError, ValueError) as error:
        raise SystemExit(str(error)) from None


def requests() -> list[UserMsg]:
    """Prompts of 1 to 40 tokens, answers of at most 1 to 40."""
    rng, made = random.Random(8), []
    for uid in range(COUNT):
        ids = rng.choices(range(500), k=rng.randint(1, 40))
        params = SamplingParams(max_tokens=rng.randint(1, 40), ignore_eos=True)
        made.append(UserMsg(uid, torch.tensor(ids, dtype=torch.int32), params))
    return made


def fail_some(batch: Batch) -> LogitsEdit | None:
    """A logits processor: NaN for some requests after their third token."""
    rows = [
        row
        for row, req in enumerate(batch.reqs)
        if req.uid % 20 == 7 and req.output_len - req.remain_len == 3
    ]

    def edit(logits: torch.Tensor) -> torch.Tensor:
        logits[rows] = float("nan")
        return logits

    return edit if rows else None


def serve(scheduler: Scheduler, gap: int) -> Iterator[list[DetokenizeMsg]]:
    """A request comes in every `gap` steps; yields the replies of each step."""
    queue, step = requests(), 0
    while queue or scheduler.has_work:
        while queue and step >= gap * queue[0].uid:
            scheduler.inbox.append(queue.pop(0))
        step += 1
        scheduler.normal_loop()
        replies, scheduler.outbox = scheduler.outbox, []
        yield replies


def abort_oldest(scheduler: Scheduler) -> int:
    """Abort the request that has been running longest; how many that are."""
    running = list(scheduler.decode_manager.running_reqs)[:1]
    scheduler.inbox += map(AbortBackendMsg, running)
    return len(running)
