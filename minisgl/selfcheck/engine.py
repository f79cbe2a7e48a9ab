"""The engine, with its own requests, and what its answers are held against."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from minisgl.core import SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.message import UserMsg
from minisgl.scheduler import Scheduler, SchedulerConfig
from minisgl.selfcheck.models import Ids, Reference

TOKENS = 24
NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""How far apart, in standard deviations of the logits, the two best may be where
two right computations choose differently."""


def make_prompts() -> list[Ids]:
    """Random ones, of uneven lengths from 1 token on."""
    rng = random.Random(0)
    lengths = (1, 7, 16, 33, 64, 100, 200, 257)
    return [[rng.randrange(1000) for _ in range(n)] for n in lengths]


def make_config(
    folder: Path, device: torch.device, **settings: Any
) -> SchedulerConfig:
    """A small engine in float32, without queues; `settings` change it.

    Nothing is recorded unless they say so: it would take longer than to run.
    """
    usual = {
        "tp_info": DistributedInfo(0, 1),
        "dtype": "float32",
        "device": device.type,
        "page_size": 16,
        "max_running_req": 16,
        "max_seq_len_override": 512,
        "num_page_override": 4096 // settings.get("page_size", 16),
        "cuda_graph_max_bs": 0,
        "offline_mode": True,
    }
    return SchedulerConfig(str(folder), **usual | settings)


@torch.inference_mode()
def answer(config: SchedulerConfig, prompts: Sequence[Ids]) -> list[Ids]:
    """Greedy answers of TOKENS tokens, all requests at once."""
    scheduler = Scheduler(config)
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    answers: dict[int, Ids] = {}
    for uid, ids in enumerate(prompts):
        answers[uid] = []
        tensor = torch.tensor(ids, dtype=torch.int32)
        scheduler.inbox.append(UserMsg(uid, tensor, params))
    data = None
    while scheduler.inbox or scheduler.has_work or data is not None:
        data = scheduler.step(data)
        for msg in scheduler.outbox:
            assert msg.error is None, msg.error
            answers[msg.uid].append(msg.next_token)
        scheduler.outbox.clear()
    scheduler.shutdown()
    scheduler.engine.shutdown()
    return list(answers.values())


def _first_difference(mine: Ids, theirs: Ids) -> int | None:
    assert len(mine) == len(theirs), f"{len(theirs)} tokens, not {len(mine)}"
    pairs = enumerate(zip(mine, theirs, strict=True))
    return next((i for i, (a, b) in pairs if a != b), None)


def compare(
    got: Sequence[Ids],
    wanted: Sequence[Reference],
    near: float,
    spare: int = 0,
) -> str:
    """Assert that answers differ first where the choice was close, if at all.

    At least a quarter of the tokens must be equal.

    near: the greatest gap between the two best logits that is close.
    spare: so many answers may differ where it was not.
    """
    ids = [one.ids for one in wanted]
    return compare_runs(ids, got, wanted, near, spare)


def compare_runs(
    one: Sequence[Ids],
    other: Sequence[Ids],
    reference: Sequence[Reference],
    near: float,
    spare: int = 0,
) -> str:
    """The same of two runs; where both still follow the reference, it judges."""
    equal, gaps = 0, []
    far: list[str] = []
    for number, theirs in enumerate(reference):
        a, b = one[number], other[number]
        at = _first_difference(a, b)
        equal += len(a) if at is None else at
        if at is None or a[:at] != theirs.ids[:at]:
            continue
        gap = theirs.gaps[at]
        if gap < near:
            gaps.append(gap)
            continue
        far.append(
            f"request {number}, token {at}: {b[at]}, not {a[at]}, though the "
            f"best leads by {gap:.2g} std"
        )
    assert len(far) <= spare, "; ".join(far)
    total = TOKENS * len(one)
    note = f"{equal} of {total} tokens equal"
    # Noise that is close to every choice is no noise.
    assert 4 * equal >= total, f"only {note}"
    if gaps:
        note += f", {len(gaps)} close choices (at most {max(gaps):.2g} std)"
    if far:
        note += f", {len(far)} not close ({spare} may be)"
    return note
