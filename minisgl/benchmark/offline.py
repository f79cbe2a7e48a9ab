"""All requests at once: tokens a second of our engine, and of its peers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from minisgl.benchmark.peers import PEERS
from minisgl.benchmark.report import Report, Value, machine
from minisgl.benchmark.subject import WARM_UP, Run, Subject
from minisgl.benchmark.workload import UNTIMED, Request, Workload

Way = Callable[[Sequence[Request]], Run]
Say = Callable[[str], None]

OURS = "ours"
_SHARED_MEMORY = 0.45
"""Of the device, for our engine when a peer needs its own."""


@dataclass
class Contest:
    """Ways to answer the same requests, timed in turn.

    ways: by name; what the one called `OURS` raises is raised, what another
        does is noted as the reason why it has no time.
    say: is told of every run.
    """

    ways: dict[str, Way]
    say: Say
    speeds: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    steps: int = 0

    def warm_up(self, requests: Sequence[Request]) -> None:
        """Let each answer something that nobody times."""
        for name in self.ways:
            self._run(name, requests)

    def play(self, requests: Sequence[Request]) -> None:
        """One round. Only tokens that somebody asked for count."""
        tokens = sum(r.output for r in requests)
        for name in self.ways:
            run = self._run(name, requests)
            if run is None:
                continue
            speed = tokens / run.seconds
            self.speeds.setdefault(name, []).append(speed)
            if name == OURS:
                self.steps = len(run.batches)
            self.say(
                f"{name}: {tokens:,} tokens in {run.seconds:.2f} s, "
                f"{speed:,.1f} tokens/s"
            )

    def _run(self, name: str, requests: Sequence[Request]) -> Run | None:
        if name in self.failed:
            return None
        try:
            return self.ways[name](requests)
        except Exception as error:
            if name == OURS:
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            self.failed[name] = f"does not work here: {reason}"
            self.say(f"{name} {self.failed[name]}")
            return None

    def rows(self) -> list[dict[str, Value]]:
        """Medians over the rounds, and how ours compares."""
        ours = statistics.median(self.speeds[OURS])
        found: list[dict[str, Value]] = []
        for name in self.ways:
            if name in self.failed:
                found.append({"": name, "rounds": self.failed[name]})
                continue
            middle = statistics.median(self.speeds[name])
            row: dict[str, Value] = {"": name, "tokens/s": middle}
            row["ours is"] = f"{ours / middle:.2f} x"
            row["rounds"] = [*self.speeds[name]]
            found.append(row)
        return found


def measure_offline(
    subject: Subject,
    work: Workload,
    peers: Sequence[str],
    rounds: int,
    say: Say,
) -> Report:
    """Our engine and peers, names of `PEERS`, in turn in every round.

    Raises:
        ValueError: a peer is not known, or a setting is out of range.
    """
    if unknown := set(peers) - PEERS.keys():
        known = ", ".join(PEERS)
        raise ValueError(f"no peer is called {min(unknown)!r}; known: {known}")
    if peers:
        settings = {"memory_ratio": _SHARED_MEMORY} | subject.settings
        subject = replace(subject, settings=settings)
    with ExitStack() as stack:
        llm = stack.enter_context(subject.engine())
        ways: dict[str, Way] = {OURS: lambda r: llm.run(r, work.temperature)}
        if peers:
            hf = stack.enter_context(subject.transformers())
            at_once = llm.config.max_running_req
            for name in peers:
                ways[name] = _bind(name, hf, work.temperature, at_once)
        contest = Contest(ways, say)
        vocab = llm.engine.sampler.vocab_size
        few = replace(work, requests=min(WARM_UP, work.requests))
        contest.warm_up(few.draw(vocab, UNTIMED))
        for number in range(rounds):
            contest.play(work.draw(vocab, number))
    setup = machine(subject.torch_device) | {
        "dtype": str(llm.engine.dtype).removeprefix("torch."),
        "temperature": work.temperature,
        "steps of ours": contest.steps,
    }
    columns = ["", "tokens/s", "ours is", "rounds"]
    return Report(
        f"{work.requests} requests, prompts and answers of {work.shortest} to "
        f"{work.longest} tokens",
        columns,
        contest.rows(),
        setup | subject.settings,
    )


def _bind(name: str, hf: Any, temperature: float, at_once: int) -> Way:
    return lambda requests: PEERS[name](hf, requests, temperature, at_once)
