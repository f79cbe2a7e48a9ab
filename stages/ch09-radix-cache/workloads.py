"""Prompts that share their beginnings, served with and without a radix cache."""

from dataclasses import dataclass, field
from time import perf_counter

import torch

import minisgl.scheduler.scheduler as scheduler_module
from minisgl.core import Batch, SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.engine import BatchSamplingArgs, ForwardOutput
from minisgl.message import UserMsg
from minisgl.scheduler import Scheduler, SchedulerConfig
from minisgl.scheduler.cache import CacheManager
from tools.stagekit import model_path
from tools.zoo.places import ModelError

ANSWER = 8


def ids(seed: int, length: int) -> list[int]:
    """Seeded token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(500, (length,), generator=generator).tolist()


@dataclass
class Server:
    """A scheduler, and what its prefill steps cost so far.

    answers: tokens of each request, in the order they were asked.
    computed: prompt tokens that went through the model.
    seconds: in steps that computed prompts.
    """

    model: str
    cache: str
    device: str
    pages: int = 4096
    answers: list[list[int]] = field(default_factory=list)
    asked: int = 0
    computed: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        # The scheduler has no setting for it yet; chapter 10 adds one.
        scheduler_module.CacheManager = self._manager  # type: ignore
        try:
            config = SchedulerConfig(
                str(model_path(self.model)),
                DistributedInfo(0, 1),
                "float32",
                num_page_override=self.pages,
                device=self.device,
            )
            self.scheduler = Scheduler(config)
        except (ModelError, ValueError) as error:
            raise SystemExit(str(error)) from None
        self._note_batches()

    def _manager(
        self, num_pages: int, page_size: int, page_table: torch.Tensor, *_: str
    ) -> CacheManager:
        return CacheManager(num_pages, page_size, page_table, self.cache)

    def ask(self, *prompts: list[int]) -> list[int]:
        """Serve prompts that come at once; returns the last one's answer."""
        first = len(self.answers)
        for uid, prompt in enumerate(prompts, first):
            params = SamplingParams(max_tokens=ANSWER, ignore_eos=True)
            message = UserMsg(uid, torch.tensor(prompt).int(), params)
            self.scheduler.inbox.append(message)
            self.answers.append([])
            self.asked += len(prompt)
        while self.scheduler.inbox or self.scheduler.has_work:
            self._step()
        return self.answers[-1]

    def _step(self) -> None:
        start = perf_counter()
        self.scheduler.normal_loop()
        spent = perf_counter() - start
        batch = self.batches.pop()
        if batch.is_prefill:
            self.seconds += spent
            self.computed += len(batch.input_ids)
        for msg in self.scheduler.outbox:
            self.answers[msg.uid].append(msg.next_token)
        self.scheduler.outbox.clear()

    def _note_batches(self) -> None:
        """Keep each batch that runs, for `_step` to look at."""
        run = self.scheduler.engine.forward_batch
        self.batches: list[Batch] = []

        def noted(batch: Batch, args: BatchSamplingArgs) -> ForwardOutput:
            self.batches.append(batch)
            return run(batch, args)

        self.scheduler.engine.forward_batch = noted  # type: ignore[method-assign]


def first_token(model: str, device: str) -> tuple[float, float]:
    """Seconds of a prefill of 528 tokens, and of one with 512 of them known."""
    server = Server(model, "radix", device)
    times: dict[str, list[float]] = {"cold": [], "hit": []}
    for i in range(4):
        for kind, own in (("cold", 100 + i), ("hit", 200 + i)):
            before = server.seconds
            server.ask([*ids(300 + i, 512), *ids(own, 16)])
            times[kind].append(server.seconds - before)
    # The first pair warms up; the medians are those of the other three.
    return sorted(times["cold"][1:])[1], sorted(times["hit"][1:])[1]


SYSTEM = ids(0, 256)


def strangers(server: Server) -> None:
    for i in range(8):
        server.ask(ids(1 + i, 272))


def questions(server: Server) -> None:
    for i in range(8):
        server.ask([*SYSTEM, *ids(10 + i, 16)])


def at_once(server: Server) -> None:
    server.ask(*[[*SYSTEM, *ids(10 + i, 16)] for i in range(8)])


def chat(server: Server) -> None:
    said = ids(20, 200)
    for i in range(8):
        said += server.ask(said)
        said += ids(21 + i, 16)


def again(server: Server) -> None:
    for _ in range(8):
        server.ask([*SYSTEM, *ids(10, 16)])


WORKLOADS = {
    "8 strangers": strangers,
    "8 questions, one system prompt": questions,
    "the same 8, all at once": at_once,
    "a chat of 8 turns": chat,
    "one prompt, 8 times": again,
}
