"""Serve three streams and one long prompt, and log every step."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import torch

from minisgl.core import Batch, SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.engine import BatchSamplingArgs, ForwardOutput
from minisgl.message import UserMsg
from minisgl.scheduler import Scheduler, SchedulerConfig
from tools.stagekit import model_path
from tools.zoo.places import ModelError

STREAMS, LONG = 3, 9  # requests 0 to 2 are the streams
LENGTH, BEFORE, ANSWER = 480, 4, 32  # its tokens; steps before it; tokens


class Wait(NamedTuple):
    """From one moment to another, the step that ends it included."""

    steps: int
    seconds: float


@dataclass
class Log:
    """What each step was, whom it gave a token, and how long it took."""

    steps: list[tuple[str, list[int], float]] = field(default_factory=list)
    answers: dict[int, list[int]] = field(default_factory=dict)

    @property
    def total(self) -> float:
        return sum(seconds for _, _, seconds in self.steps)

    def picture(self) -> str:
        """A letter a step, up to the first token of the long prompt."""
        until = BEFORE + self.first_token().steps
        return "".join("dP"[s[0] == "prefill"] for s in self.steps[:until])

    def longest_wait(self) -> Wait:
        """The longest time between two tokens of the first stream."""
        waits, steps, seconds = [], 0, 0.0
        for _, uids, spent in self.steps[BEFORE:]:
            steps, seconds = steps + 1, seconds + spent
            if 0 in uids:
                waits.append(Wait(steps, seconds))
                steps, seconds = 0, 0.0
        return max(waits, key=lambda wait: (wait.steps, wait.seconds))

    def first_token(self) -> Wait:
        """From the arrival of the long prompt to its first token."""
        after = self.steps[BEFORE:]
        last = next(i for i, (_, uids, _) in enumerate(after) if LONG in uids)
        return Wait(last + 1, sum(s for _, _, s in after[: last + 1]))


def message(uid: int, length: int) -> UserMsg:
    generator = torch.Generator().manual_seed(uid)
    prompt = torch.randint(500, (length,), generator=generator).int()
    params = SamplingParams(max_tokens=ANSWER, ignore_eos=True)
    return UserMsg(uid, prompt, params)


def serve(model: str, device: str, budget: int, in_a_row: int) -> Log:
    """Play the scene; the cache is off so that it can be played twice."""
    try:
        scheduler = Scheduler(
            SchedulerConfig(
                str(model_path(model)),
                DistributedInfo(0, 1),
                "float32",
                num_page_override=2048,
                device=device,
                cache_type="naive",
                max_extend_tokens=budget,
                prefills_in_a_row=in_a_row,
            )
        )
    except (ModelError, ValueError) as error:
        raise SystemExit(str(error)) from None
    play(scheduler)  # warms up
    return play(scheduler)


def play(scheduler: Scheduler) -> Log:
    """The streams begin; BEFORE steps later the long prompt comes."""
    log, batches = Log(), []
    run = scheduler.engine.forward_batch

    def noted(batch: Batch, args: BatchSamplingArgs) -> ForwardOutput:
        batches.append(batch)
        return run(batch, args)

    scheduler.engine.forward_batch = noted  # type: ignore[method-assign]
    scheduler.inbox += [message(uid, 8) for uid in range(STREAMS)]
    while len(log.steps) <= BEFORE or scheduler.has_work:
        if len(log.steps) == BEFORE:
            scheduler.inbox.append(message(LONG, LENGTH))
        start = perf_counter()
        scheduler.normal_loop()
        spent, sent = perf_counter() - start, scheduler.outbox
        scheduler.outbox = []
        log.steps.append((batches[-1].phase, [m.uid for m in sent], spent))
        for msg in sent:
            log.answers.setdefault(msg.uid, []).append(msg.next_token)
    scheduler.engine.forward_batch = run  # type: ignore[method-assign]
    return log
