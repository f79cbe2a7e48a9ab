"""Numbers for Prometheus: what happened here, and how the scheduler is."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.responses import Response

from minisgl.server.errors import ApiError
from minisgl.server.info import get_frontend

PATIENCE = 2.0
"""Seconds that a scrape waits for the scheduler."""

FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BETWEEN = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1)
"""Bounds of the histograms, in seconds."""

# Of what `StatusReply` lists; the pages make one family.
_REQUESTS = {
    "running": "Requests that hold a row.",
    "waiting": "Requests that wait for one.",
}

router = APIRouter()


class Histogram:
    """How many values there were up to each of some bounds.

    Nothing is locked: one thread runs all handlers.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # the last one is beyond them
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value; one that equals a bound lies below it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        """As Prometheus has it: each bucket counts those below it, too."""
        total, buckets = 0, []
        names = [*map(str, self._bounds), "+Inf"]
        for bound, count in zip(names, self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(name, text, buckets, self._sum)


class Metrics(Collector):
    """All numbers of a server.

    To count takes a few additions; everything else is done when somebody asks.

    prompt_tokens: of all prompts; cached_tokens of them were in the cache.
    generated_tokens: of all answers.
    ended: answers by how they ended: a finish reason, or abort.
    first, between: seconds to the first token, and from one to the next.
    """

    def __init__(self) -> None:
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.ended: Counter[str] = Counter()
        self.first, self.between = Histogram(FIRST), Histogram(BETWEEN)
        self._scheduler: Mapping[str, int] | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def show(self, scheduler: Mapping[str, int] | None) -> bytes:
        """All of it as text; what only the scheduler knows may be missing."""
        self._scheduler = scheduler
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What `show` turns into text."""
        counters = {
            "prompt": (self.prompt_tokens, "Tokens of prompts."),
            "cached": (self.cached_tokens, "Those of them that were cached."),
            "generated": (self.generated_tokens, "Tokens of answers."),
        }
        for name, (value, text) in counters.items():
            yield CounterMetricFamily(f"minisgl_{name}_tokens", text, value)
        ends = CounterMetricFamily(
            "minisgl_requests", "Requests by how they ended.", None, ["reason"]
        )
        for reason, count in sorted(self.ended.items()):
            ends.add_metric([reason], count)
        yield ends
        first, between = "time_to_first_token", "inter_token_latency"
        text = "Seconds from the request to its first token."
        yield self.first.family(f"minisgl_{first}_seconds", text)
        text = "Seconds from one token of an answer to the next."
        yield self.between.family(f"minisgl_{between}_seconds", text)
        rate = self.cached_tokens / max(1, self.prompt_tokens)
        text = "Cached tokens by prompt tokens, since the start."
        yield GaugeMetricFamily("minisgl_cache_hit_rate", text, rate)
        yield from self._of_scheduler(self._scheduler)

    def _of_scheduler(
        self, found: Mapping[str, int] | None
    ) -> Iterator[Metric]:
        up, text = found is not None, "Whether the scheduler answered."
        yield GaugeMetricFamily("minisgl_scheduler_up", text, int(up))
        if found is None:  # better no number than an old one
            return
        for name, text in _REQUESTS.items():
            yield GaugeMetricFamily(
                f"minisgl_requests_{name}", text, found[name]
            )
        pages = GaugeMetricFamily(
            "minisgl_kv_pages", "Pages of the KV pool.", None, ["state"]
        )
        free, cached = found["free_pages"], found["cached_pages"]
        used = found["total_pages"] - free - cached
        states = {"used": used, "cached": cached, "free": free}
        for state, count in states.items():
            pages.add_metric([state], count)
        yield pages


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request) -> Response:
    """What Prometheus collects, every few seconds."""
    found: Metrics = request.app.state.observer.metrics
    try:
        numbers = await get_frontend(request).status(PATIENCE)
    except (ApiError, TimeoutError):
        numbers = None
    return Response(found.show(numbers), media_type=CONTENT_TYPE_LATEST)
