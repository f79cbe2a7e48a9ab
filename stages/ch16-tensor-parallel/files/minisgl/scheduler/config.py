"""Everything a scheduler is told before it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from minisgl.engine import EngineConfig
from minisgl.scheduler.addresses import socket_addr, socket_dir, unique_suffix


@dataclass(frozen=True)
class SchedulerConfig(EngineConfig):
    """Settings of a scheduler, beside those of its engine.

    All processes of a server are given the same one but for `tp_info`; two made
    separately name different addresses.

    max_extend_tokens: most prompt tokens in one step.
    cache_type: the prefix cache, by name; ``auto`` is the best there is.
    prefills_in_a_row: after so many prefill batches running requests get a
        decode batch; 0 lets them wait until no prompt does.
    overlap: launch the next batch before the last one's tokens are read.
    offline_mode: messages come and go in lists, not through queues.
    """

    max_extend_tokens: int = 8192
    cache_type: str = "auto"
    prefills_in_a_row: int = 1
    overlap: bool = True
    offline_mode: bool = False
    _unique_suffix: str = field(default_factory=unique_suffix)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_extend_tokens < 1:
            raise ValueError("max_extend_tokens must be at least 1")
        if self.prefills_in_a_row < 0:
            raise ValueError("prefills_in_a_row must be at least 0")

    @property
    def socket_dir(self) -> Path:
        """The folder of the socket files; whoever starts a server makes it."""
        return socket_dir(self._unique_suffix)

    @property
    def zmq_backend_addr(self) -> str:
        """Where rank 0 takes requests; it creates the address."""
        return socket_addr(self._unique_suffix, "backend")

    @property
    def zmq_detokenizer_addr(self) -> str:
        """Where rank 0 puts tokens."""
        return socket_addr(self._unique_suffix, "detokenizer")

    @property
    def zmq_scheduler_broadcast_addr(self) -> str:
        """Where rank 0 passes requests on to the other ranks."""
        return socket_addr(self._unique_suffix, "scheduler_broadcast")

    @property
    def distributed_addr(self) -> str:
        """Where the ranks find each other: a file that no other start uses."""
        return f"file://{self.socket_dir / 'ranks'}"

    @property
    def backend_create_detokenizer_link(self) -> bool:
        """Whether rank 0 creates the address of tokens; else it joins it."""
        return True
