"""The replicas as the router sees them: alive, loaded, leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minisgl.deploy.blocks import TOKENS_A_BLOCK, Blocks
from minisgl.deploy.policy import Policy

LEASE = 12.0
"""Seconds for which a beat counts. It comes every second, but a scheduler in a
long step may take four to say so, and machines are busy."""


class Beat(NamedTuple):
    """What a replica says of itself, every second.

    name: no other start of a replica has the same.
    url: of its server.
    tokens: that its KV pool holds.
    draining: whether it wants no more requests.
    """

    name: str
    url: str
    tokens: int
    draining: bool = False


@dataclass(eq=False)
class Replica:
    """One that has said that it lives.

    beat: the last it said.
    in_flight: requests that it is answering.
    suspected: a connection failed since its last beat.
    gone: set when it has said nothing for too long.
    """

    beat: Beat
    in_flight: int = 0
    suspected: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    lease: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Whether it may be given a request."""
        return not (self.suspected or self.beat.draining)

    def show(self) -> dict[str, Any]:
        """For people who ask how it is."""
        found = {"url": self.beat.url, "in_flight": self.in_flight}
        return found | {"open": self.is_open, "draining": self.beat.draining}


class Fleet:
    """All replicas; who joins and leaves follows from their beats alone."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.replicas: dict[str, Replica] = {}

    def beat(self, beat: Beat) -> int:
        """Note that a replica lives; how many requests it still has."""
        replica = self.replicas.get(beat.name)
        if replica is None:
            replica = self.replicas[beat.name] = Replica(beat)
            blocks = max(1, beat.tokens // TOKENS_A_BLOCK)
            self._policy.join(beat.name, blocks)
        replica.beat, replica.suspected = beat, False
        if replica.lease is not None:
            replica.lease.cancel()
        if beat.draining and replica.in_flight == 0:
            self._remove(replica)
        else:
            loop = asyncio.get_running_loop()
            replica.lease = loop.call_later(LEASE, self._remove, replica)
        return replica.in_flight

    def _remove(self, replica: Replica) -> None:
        del self.replicas[replica.beat.name]
        self._policy.leave(replica.beat.name)
        replica.gone.set()

    def pick(self, blocks: Blocks, tried: Collection[str]) -> Replica | None:
        """Who is to answer; None if there is nobody else than `tried`."""
        loads = {
            name: replica.in_flight
            for name, replica in self.replicas.items()
            if replica.is_open and name not in tried
        }
        if not loads:
            return None
        return self.replicas[self._policy.choose(blocks, loads)]
