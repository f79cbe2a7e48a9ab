"""Everything a scheduler is told before it starts."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.engine import EngineConfig


@dataclass(frozen=True)
class SchedulerConfig(EngineConfig):
    """Settings of a scheduler, beside those of its engine.

    max_extend_tokens: most prompt tokens in one step.
    """

    max_extend_tokens: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_extend_tokens < 1:
            raise ValueError("max_extend_tokens must be at least 1")
