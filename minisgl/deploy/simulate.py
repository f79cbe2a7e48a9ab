"""`python -m minisgl.deploy.simulate`: policies on up to a thousand replicas."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count, product
from pathlib import Path
from random import Random
from typing import Annotated

import typer
from rich.console import Console

from minisgl.benchmark.report import Report
from minisgl.deploy.blocks import TOKENS_A_BLOCK, Blocks
from minisgl.deploy.policy import POLICIES, Policy, PrefixPolicy
from minisgl.deploy.prefixes import PrefixLRU
from minisgl.deploy.traffic import Conversation, Traffic


@dataclass(frozen=True)
class Machine:
    """What a replica can do.

    prefill: tokens a second, of one prompt after the other.
    decode: seconds from one token of an answer to the next.
    pool: tokens that its prefix cache holds.
    """

    prefill: float = 2000.0
    decode: float = 0.02
    pool: int = 64_000


class SimReplica:
    """A server that computes prompts in turn and makes answers beside that."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._cache = PrefixLRU(machine.pool // TOKENS_A_BLOCK)
        self._free = 0.0

    def ask(self, now: float, blocks: Blocks) -> tuple[float, int]:
        """When the first token comes, and how many blocks were cached."""
        cached = self._cache.match(blocks)
        self._cache.add(blocks)
        missing = (len(blocks) - cached) * TOKENS_A_BLOCK
        begin = max(now, self._free)
        self._free = begin + missing / self._machine.prefill
        return self._free, cached


@dataclass
class Outcome:
    """What came of it: blocks of all prompts, and waits for first tokens."""

    asked: int = 0
    cached: int = 0
    waits: list[float] = field(default_factory=list)

    @property
    def hit_rate(self) -> float:
        """Of the prompts' blocks, the share that was cached."""
        return self.cached / max(1, self.asked)

    def wait(self, share: float) -> float:
        """The wait that this share of the requests does not exceed."""
        ordered = sorted(self.waits)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def simulate(
    policy: Policy,
    replicas: int,
    traffic: Traffic,
    machine: Machine,
    seconds: float,
) -> Outcome:
    """Let conversations come for so long, and end them all.

    The first half of the time warms the caches and does not count.
    """
    names = [str(number) for number in range(replicas)]
    fleet = {name: SimReplica(machine) for name in names}
    for name in names:
        policy.join(name, machine.pool // TOKENS_A_BLOCK)
    loads = dict.fromkeys(names, 0)
    outcome, order = Outcome(), count()
    # What happens when: a question, or the end of an answer by a replica.
    Event = tuple[float, int, Conversation, str | None]
    events: list[Event] = [
        (when, next(order), one, None)
        for when, one in traffic.conversations(replicas, seconds, Random(0))
    ]
    heapq.heapify(events)
    while events:
        now, _, talk, by = heapq.heappop(events)
        if by is not None:
            loads[by] -= 1
            pause = talk.answered()
            if talk.left and now < seconds:
                heapq.heappush(events, (now + pause, next(order), talk, None))
            continue
        name = policy.choose(talk.blocks, loads)
        loads[name] += 1
        first, cached = fleet[name].ask(now, talk.blocks)
        if now > seconds / 2:
            outcome.asked += len(talk.blocks)
            outcome.cached += cached
            outcome.waits.append(first - now)
        end = first + talk.answer * machine.decode
        heapq.heappush(events, (end, next(order), talk, name))
    return outcome


def compare(
    policies: Mapping[str, Callable[[Random], Policy]],
    sizes: list[int],
    seconds: float,
    traffic: Traffic,
    machine: Machine,
) -> Report:
    """Every policy on so many replicas, with as much to do for each."""
    report = Report(
        f"Policies of a router, {seconds:g} simulated seconds",
        ["policy", "replicas", "requests", "hit rate", "p50 ms", "p99 ms"],
        setup=asdict(traffic) | asdict(machine),
    )
    for replicas, (name, make) in product(sizes, policies.items()):
        print(f"{name}, {replicas} replicas", file=sys.stderr, flush=True)
        out = simulate(make(Random(0)), replicas, traffic, machine, seconds)
        report.rows.append(
            {
                "policy": name,
                "replicas": replicas,
                "requests": len(out.waits),
                "hit rate": round(out.hit_rate, 3),
                "p50 ms": round(out.wait(0.5) * 1e3),
                "p99 ms": round(out.wait(0.99) * 1e3),
            }
        )
    return report


def main(
    replicas: Annotated[
        list[int] | None, typer.Option(min=1, help="How many; repeatable.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="Simulated, half of them to warm up.")
    ] = 240.0,
    rate: Annotated[
        float, typer.Option(help="Conversations a second, for each replica.")
    ] = Traffic.rate,
    wait: Annotated[
        list[float] | None,
        typer.Option(
            help="Compare these for the prefix policy instead; repeatable."
        ),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option("--out", help="Write it here: .json or .md; repeatable."),
    ] = None,
) -> None:
    """Compare the router's policies without a single server."""
    policies: dict[str, Callable[[Random], Policy]] = {
        name: POLICIES[name] for name in POLICIES.supported_names()
    }
    if wait:
        policies = {
            f"prefix, wait {w:g}": partial(PrefixPolicy, wait=w) for w in wait
        }
    sizes = replicas or [1, 3, 10, 30]
    report = compare(policies, sizes, seconds, Traffic(rate), Machine())
    report.show(Console())
    for path in out or ():
        report.write(path)


if __name__ == "__main__":
    typer.run(main)
