"""A scheduler stepped by a test: submit, run to idle, look at what came of it.

Works at every chapter from ch07 on. A `Driver` keeps a log of the steps that ran and
collects the tokens and the last message of every request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from minisgl.core import Batch, SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.message import AbortBackendMsg, DetokenizeMsg, UserMsg
from minisgl.scheduler import Scheduler, SchedulerConfig
from tests.parity import RandomParity, Reference, assert_parity, reference

REFUSED = ("error", "refused")
"""How a request ends that could never run; up to ch14 as one that has failed."""


class Step(NamedTuple):
    """A batch that ran: its phase, and by uid the tokens it computed."""

    phase: str
    tokens: dict[int, int]


# From ch14 on messages come through queues unless this is asked for.
OFFLINE = {
    field.name: True
    for field in fields(SchedulerConfig)
    if field.name == "offline_mode"
}


class Driver:
    """A scheduler on the CPU in float32, with a step log.

    Args:
        pages: of the pool, `page_size` tokens each.
        ends: end tokens, in place of the model's own.
        overlap: None steps by `normal_loop`, which every chapter has. A bool is
            the setting of ch11, and steps by `Scheduler.step`.
        scheduler: its class.
        settings: further fields of `SchedulerConfig`.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        page_size: int = 1,
        pages: int = 2048,
        ends: Sequence[int] | None = None,
        overlap: bool | None = None,
        scheduler: type[Scheduler] = Scheduler,
        **settings: Any,
    ) -> None:
        settings = {"dtype": "float32", "device": "cpu"} | OFFLINE | settings
        if overlap is not None:
            settings["overlap"] = overlap
        self.folder = Path(folder)
        self.scheduler = scheduler(
            SchedulerConfig(
                model_path=str(folder),
                tp_info=DistributedInfo(0, 1),
                page_size=page_size,
                num_page_override=pages,
                **settings,
            )
        )
        if ends is not None:
            self.scheduler.eos_token_ids = type(self.scheduler.eos_token_ids)(
                ends
            )
        self.by_step = overlap is not None
        self.data: Any = None  # the batch in flight, with `overlap`
        self.prompts: dict[int, list[int]] = {}
        self.answers: dict[int, list[int]] = {}
        self.ended: dict[int, DetokenizeMsg] = {}
        self.steps: list[Step] = []
        self._log_steps()

    def _log_steps(self) -> None:
        engine = self.scheduler.engine
        run = engine.forward_batch

        def logged(batch: Batch, *args: Any) -> Any:
            tokens = {req.uid: req.extend_len for req in batch.reqs}
            self.steps.append(Step(batch.phase, tokens))
            return run(batch, *args)

        engine.forward_batch = logged  # type: ignore[method-assign]

    def submit(
        self, uid: int, ids: Sequence[int], max_tokens: int = 8, **params: Any
    ) -> None:
        """Put a request into the inbox; end tokens are ignored unless asked for."""
        params = {"ignore_eos": True} | params
        self.prompts[uid], self.answers[uid] = list(ids), []
        prompt = torch.tensor(self.prompts[uid], dtype=torch.int32)
        chosen = SamplingParams(max_tokens=max_tokens, **params)
        self.scheduler.inbox.append(UserMsg(uid, prompt, chosen))

    def abort(self, uid: int) -> None:
        self.scheduler.inbox.append(AbortBackendMsg(uid))

    @property
    def idle(self) -> bool:
        busy = self.scheduler.inbox or self.data or self.scheduler.has_work
        return not busy

    def step(self) -> list[DetokenizeMsg]:
        """One turn of the loop; returns the messages it sent."""
        with torch.inference_mode():
            if self.by_step:
                self.data = self.scheduler.step(self.data)
            else:
                self.scheduler.normal_loop()
        sent, self.scheduler.outbox = self.scheduler.outbox, []
        for msg in sent:
            assert msg.uid not in self.ended, f"a message after the end: {msg}"
            if msg.finished:
                self.ended[msg.uid] = msg
            if msg.next_token >= 0:
                self.answers[msg.uid].append(msg.next_token)
        return sent

    def run(self, limit: int = 5000) -> dict[int, list[int]]:
        """Step until nothing is left to do; returns all answers by uid."""
        for _ in range(limit):
            if self.idle:
                return self.answers
            self.step()
        raise AssertionError(f"not idle after {limit} steps")

    def prefills(self) -> Iterator[Step]:
        return (step for step in self.steps if step.phase == "prefill")

    def decodes(self) -> Iterator[Step]:
        return (step for step in self.steps if step.phase == "decode")

    def assert_parity(
        self,
        *uids: int,
        length: int | None = None,
        near: RandomParity | None = None,
    ) -> None:
        """The answers (all of them, or those of `uids`) are their solo runs'.

        length: what an answer must have; left out, the reference is as long as it.
        near: counts near ties of random prompts; fixed prompts have none.
        """
        check = near.check if near is not None else assert_parity
        for uid in uids or self.answers:
            got = self.answers[uid]
            size = len(got) if length is None else length
            check(got, solo(self.folder, self.prompts[uid], size))

    def has_parity(self, *uids: int, length: int | None = None) -> bool:
        """Whether `assert_parity` finds nothing: for tests of what goes wrong."""
        try:
            self.assert_parity(*uids, length=length)
        except AssertionError:
            return False
        return True

    def assert_clean(self) -> None:
        """Idle, with every row free; from ch08 on every page is accounted for too."""
        assert self.idle, "something is still to be done"
        assert not self.scheduler.decode_manager.running_reqs
        assert not self.scheduler.prefill_manager.pending_list
        table, config = self.scheduler.table_manager, self.scheduler.config
        rows = sorted(table.allocate() for _ in range(table.available_size))
        for row in reversed(rows):
            table.free(row)
        assert rows == [*range(config.max_running_req)]
        manager = self.scheduler.cache_manager
        if hasattr(manager, "check_integrity"):
            manager.check_integrity()
            assert (
                manager.available_size == manager.num_pages * manager.page_size
            )

    def assert_every_page(self) -> None:
        """Clean, and emptying the prefix cache brings back each page once (ch08 on)."""
        self.assert_clean()
        manager = self.scheduler.cache_manager
        size = manager.prefix_cache.size_info.total_size
        manager._free(manager.prefix_cache.evict(size))
        assert sorted(manager.free_pages.tolist()) == [
            *range(manager.num_pages)
        ]
        manager.check_integrity()


def solo(folder: str | Path, ids: Sequence[int], length: int) -> Reference:
    """The first `length` tokens of the reference, end tokens ignored.

    It is asked for in multiples of 64 tokens, so that answers of many lengths share
    one: what is greedy does not depend on where it stops.
    """
    whole = reference(folder, ids, max(64, -(-length // 64) * 64))
    return Reference(whole.ids[:length], whole.gaps[:length])


def poison(driver: Driver, uid: int, at_length: int = 0) -> None:
    """Make the logits of a request NaN once it has `at_length` tokens or more."""

    def processor(batch: Batch) -> Any:
        bad = [
            i
            for i, req in enumerate(batch.reqs)
            if req.uid == uid and req.device_len >= at_length
        ]

        def edit(logits: torch.Tensor) -> torch.Tensor:
            logits = logits.clone()
            logits[bad] = float("nan")
            return logits

        return edit if bad else None

    driver.scheduler.engine.sampler.processors.append(processor)
