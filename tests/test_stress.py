"""Random life: arrivals, lengths, shared prefixes, aborts, failures, settings.

After every case the pool is clean and each answer that was not cut off equals
the request's solo run. `MINISGL_STRESS=5000 pytest tests/test_stress.py` runs
more cases than the usual ones; a failure names its seed.
"""

import functools
import os
import random
from dataclasses import dataclass, field

import pytest
import torch

from minisgl.core import Batch, SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.message import AbortBackendMsg, UserMsg
from minisgl.scheduler import Scheduler, SchedulerConfig
from tests.driver import OFFLINE
from tests.parity import RandomParity, Reference, model_under_test, reference

CASES = int(os.environ.get("MINISGL_STRESS", "320"))
GROUPS = 8
LONGEST = 16


@functools.cache
def model() -> str:
    return str(model_under_test("qwen3-tiny"))


@functools.cache
def prompts() -> list[list[int]]:
    """48 prompts that branch off one another at random places."""
    rng = random.Random(7)
    family: list[list[int]] = [[rng.randrange(500) for _ in range(33)]]
    while len(family) < 48:
        parent = rng.choice(family)
        kept = parent[: rng.randrange(len(parent) + 1)]
        new = [rng.randrange(500) for _ in range(rng.randint(1, 24))]
        family.append((kept + new)[:64])
    return family


@functools.cache
def solo(which: int) -> Reference:
    return reference(model(), prompts()[which], LONGEST)


@dataclass
class Client:
    """What one request asked for and what it got."""

    uid: int
    which: int
    wanted: int
    aborted: bool = False
    fails_at: int | None = None
    ids: list[int] = field(default_factory=list)
    reason: str | None = None


class Case:
    """One seeded run of a scheduler from its first request to idle."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        page = self.rng.choice([1, 4, 16])
        self.rows = self.rng.randint(1, 5)
        config = SchedulerConfig(
            model(),
            DistributedInfo(0, 1),
            "float32",
            device="cpu",
            page_size=page,
            num_page_override=self.rng.choice([96, 160, 400]) // page,
            max_running_req=self.rows,
            max_extend_tokens=self.rng.choice([1, 5, 16, 40, 8192]),
            cache_type=self.rng.choice(["radix", "naive"]),
            prefills_in_a_row=self.rng.choice([0, 1, 3]),
            overlap=self.rng.random() < 0.7,
            **OFFLINE,
        )
        self.scheduler = Scheduler(config)
        self.scheduler.engine.sampler.processors.append(self._fail)
        self.ends = set(self.rng.sample(range(512), 12))
        self.scheduler.eos_token_ids = frozenset(self.ends)
        self.clients: dict[int, Client] = {}

    def _fail(self, batch: Batch):
        """Replace by NaN the logits of requests whose time has come."""
        bad = [
            row
            for row, req in enumerate(batch.reqs)
            if self.clients[req.uid].fails_at == req.device_len
        ]
        if not bad:
            return None

        def edit(logits: torch.Tensor) -> torch.Tensor:
            logits[bad] = float("nan")
            return logits

        return edit

    @torch.inference_mode()
    def run(self) -> None:
        data, steps, arrivals = None, 0, self.rng.randint(3, 9)
        while arrivals or self.scheduler.has_work or data is not None:
            while arrivals and self.rng.random() < 0.5:
                self._arrive()
                arrivals -= 1
            if self.clients and self.rng.random() < 0.08:
                self._abort(self.rng.randrange(len(self.clients) + 1))
            data = self.scheduler.step(data)
            self._collect()
            steps += 1
            assert steps < 2000, "the scheduler does not come to an end"

    def _arrive(self) -> None:
        which = self.rng.randrange(len(prompts()))
        client = Client(len(self.clients), which, self.rng.randint(1, LONGEST))
        prompt = prompts()[which]
        if self.rng.random() < 0.05:
            client.fails_at = len(prompt) + self.rng.randrange(client.wanted)
        self.clients[client.uid] = client
        ids = torch.tensor(prompt, dtype=torch.int32)
        params = SamplingParams(max_tokens=client.wanted)
        self.scheduler.inbox.append(UserMsg(client.uid, ids, params))

    def _abort(self, uid: int) -> None:
        """Abort a request in whatever state, or one that never was."""
        self.scheduler.inbox.append(AbortBackendMsg(uid))
        if uid in self.clients and self.clients[uid].reason is None:
            self.clients[uid].aborted = True

    def _collect(self) -> None:
        replies, self.scheduler.outbox = self.scheduler.outbox, []
        for msg in replies:
            client = self.clients[msg.uid]
            assert not client.aborted, "a token after the abort"
            assert client.reason is None, "a token after the end"
            if msg.next_token >= 0:
                client.ids.append(msg.next_token)
            client.reason = msg.finish_reason

    def check(self, parity: RandomParity) -> None:
        self.scheduler.cache_manager.check_integrity()
        rows = self.scheduler.table_manager
        free = [rows.allocate() for _ in range(rows.available_size)]
        assert sorted(free) == list(range(self.rows))
        for client in self.clients.values():
            self._check_answer(client, parity)

    def _check_answer(self, client: Client, parity: RandomParity) -> None:
        whole = solo(client.which)
        ends = [i for i, token in enumerate(whole.ids) if token in self.ends]
        length = min([client.wanted, *(i + 1 for i in ends)])
        if client.aborted:
            length = len(client.ids)
        elif client.fails_at is not None:
            before = client.fails_at - len(prompts()[client.which])
            if before < length:
                length = before
                assert client.reason == "error"
        else:
            stopped = whole.ids[length - 1] in self.ends
            assert client.reason == ("stop" if stopped else "length")
        expected = Reference(whole.ids[:length], whole.gaps[:length])
        parity.check(client.ids, expected)


@pytest.mark.parity
@pytest.mark.parametrize("group", range(GROUPS))
def test_random_cases_end_clean_and_equal_their_solo_runs(group):
    parity = RandomParity()
    for seed in range(group, CASES, GROUPS):
        case = Case(seed)
        try:
            case.run()
            case.check(parity)
        except Exception as error:
            raise AssertionError(f"case {seed}: {error!r}") from error
    parity.finish()
