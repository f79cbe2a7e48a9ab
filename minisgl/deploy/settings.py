"""Everything a deployment is told before it starts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from minisgl.deploy.policy import POLICIES
from minisgl.server.args import ServerArgs


@dataclass(frozen=True)
class DeployArgs:
    """Settings of a deployment.

    server: of each replica's server; its host and port are those of the one
        address for all.
    replicas: how many servers.
    policy: who gets a request, by name.
    address: of a Ray cluster, as ``HOST:PORT``, or ``auto`` for the one that
        this machine is part of; None starts one here that ends with us.
    cpus: that Ray reserves for a replica. If None: on a Ray of our own the
        cores divided by the replicas, on a cluster 1.
    drain: most seconds that answers get to end when it is told to stop.

    Raises:
        ValueError: a value that is out of range or not known.
    """

    server: ServerArgs
    replicas: int = 2
    policy: str = "prefix"
    address: str | None = None
    cpus: float | None = None
    drain: float = 30.0

    def __post_init__(self) -> None:
        POLICIES.assert_supported(self.policy)
        if self.address not in (None, "auto") and not re.fullmatch(
            r"[^/]+:\d+", str(self.address)
        ):
            raise ValueError("address must be auto or HOST:PORT")
        if self.replicas < 1:
            raise ValueError("replicas must be at least 1")
        if self.cpus is not None and not 0 < self.cpus < float("inf"):
            raise ValueError("cpus must be above 0")
        if not 0 <= self.drain < float("inf"):
            raise ValueError("drain must be at least 0")
