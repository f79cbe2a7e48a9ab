"""Everything a scheduler is told before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.engine import EngineConfig


@dataclass(frozen=True)
class SchedulerConfig(EngineConfig):
    """Settings of a scheduler, beside those of its engine.

    max_extend_tokens: most prompt tokens in one step.
    cache_type: the prefix cache, by name; ``auto`` is the best there is.
    prefills_in_a_row: after so many prefill batches running requests get a
        decode batch; 0 lets them wait until no prompt does.
    overlap: launch the next batch before the last one's tokens are read.
    """

    max_extend_tokens: int = 8192
    cache_type: str = "auto"
    prefills_in_a_row: int = 1
    overlap: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_extend_tokens < 1:
            raise ValueError("max_extend_tokens must be at least 1")
        if self.prefills_in_a_row < 0:
            raise ValueError("prefills_in_a_row must be at least 0")
