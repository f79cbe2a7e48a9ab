"""Run requests that arrive in given steps, and draw what became of them."""

import random

import torch

from minisgl.core import SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.message import UserMsg
from minisgl.scheduler import Scheduler, SchedulerConfig
from tools.stagekit import model_path
from tools.zoo.places import ModelError

PROMPTS = [12, 30, 7, 21, 40, 16, 5, 9, 12, 90]  # tokens, by request
LIMITS = [9, 30, 14, 6, 12, 20, 9, 16, 30, 200]  # tokens of the answers


def start(model: str, device: str, rows: int, pages: int) -> Scheduler:
    """A scheduler in float32, pages of one token."""
    try:
        return Scheduler(
            SchedulerConfig(
                model_path=str(model_path(model)),
                tp_info=DistributedInfo(0, 1),
                dtype="float32",
                device=device,
                max_running_req=rows,
                num_page_override=pages,
            )
        )
    except (ModelError, ValueError) as error:
        raise SystemExit(str(error)) from None


def message(uid: int) -> UserMsg:
    """A request with a random prompt, always the same."""
    ids = random.Random(uid).choices(range(500), k=PROMPTS[uid])
    params = SamplingParams(max_tokens=LIMITS[uid], ignore_eos=True)
    return UserMsg(uid, torch.tensor(ids, dtype=torch.int32), params)


def serve(
    scheduler: Scheduler, arrivals: dict[int, int]
) -> tuple[dict[int, list[int]], list[list[int]]]:
    """Step until all is done.

    Returns the answers, and for each step the requests that got a token.
    """
    answers: dict[int, list[int]] = {uid: [] for uid in arrivals}
    steps: list[list[int]] = []
    while len(steps) < max(arrivals.values()) or scheduler.has_work:
        now = len(steps) + 1
        come = [uid for uid, step in arrivals.items() if step == now]
        scheduler.inbox += map(message, come)
        scheduler.normal_loop()
        replies, scheduler.outbox = scheduler.outbox, []
        steps.append([reply.uid for reply in replies])
        for reply in replies:
            answers[reply.uid].append(reply.next_token)
    return answers, steps


def life(uid: int, arrival: int, steps: list[list[int]]) -> str:
    """One mark a step: . waiting, P prompt, d decode, - others' prompts."""
    ran = [uid in uids for uids in steps]
    first, end = ran.index(True), len(ran) - ran[::-1].index(True)
    rest = "".join("d" if r else "-" for r in ran[first + 1 : end])
    return " " * (arrival - 1) + "." * (first + 1 - arrival) + "P" + rest
