"""One line of JSON for every answer, for those who look afterwards."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TextIO

from minisgl.server.generation import Prompt
from minisgl.utils import init_logger

logger = init_logger(__name__)


@dataclass
class Record:
    """What is known of one answer.

    uid: the number by which all processes know it.
    asked, first, last: when it was asked, when its first and its last token so
        far came, on the clock of `time.perf_counter`.
    ended: why; a finish reason, or abort when the client went.
    prompt: what it goes on from.
    text: the answer, in pieces; empty unless somebody wants it.
    """

    uid: int
    asked: float
    prompt: Prompt
    first: float | None = None
    last: float = 0.0
    ended: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    text: list[str] = field(default_factory=list)

    def as_json(self, now: float, with_text: bool) -> str:
        """One line; times are in seconds."""
        first = (
            None if self.first is None else round(self.first - self.asked, 6)
        )
        found: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": self.uid,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "ttft": first,
            "seconds": round(now - self.asked, 6),
            "finish_reason": self.ended,
        }
        if with_text:
            found |= {"prompt": self.prompt, "text": "".join(self.text)}
        return json.dumps(found, default=vars)


class RequestLog:
    """Prints a line for every answer that has ended.

    with_text: also the prompt and the answer, which are nobody's business
        unless somebody has asked for them.
    """

    def __init__(self, with_text: bool) -> None:
        self.with_text = with_text
        self._out: TextIO | None = sys.stdout

    def write(self, record: Record, now: float) -> None:
        """Write it at once; a log that cannot be written is given up."""
        if self._out is None:
            return
        try:
            print(
                record.as_json(now, self.with_text), file=self._out, flush=True
            )
        except OSError as error:  # nobody reads, or the disk is full
            self._out = None
            logger.error(f"the request log ends here: {error}")
