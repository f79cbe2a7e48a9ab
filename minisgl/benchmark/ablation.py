"""What each part of the engine is worth: all of them, and all but one."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minisgl.benchmark.offline import Say
from minisgl.benchmark.report import Report, Value, machine
from minisgl.benchmark.subject import Run, Subject
from minisgl.benchmark.workload import Workload


@dataclass(frozen=True)
class Part:
    """A part of the engine.

    off: the settings that do without it.
    only_gpu: why there is nothing to switch off on a CPU; empty if there is.
    """

    name: str
    off: dict[str, Any]
    only_gpu: str = ""


NOTHING = "nothing"
NO_LIMIT = 2**30

PARTS = (
    Part("radix cache", {"cache_type": "naive"}),
    Part("chunked prefill", {"max_extend_tokens": NO_LIMIT}),
    Part("overlap", {"overlap": False}),
    Part("CUDA graph", {"cuda_graph_max_bs": 0}, "recorded on a GPU only"),
    Part(
        "GPU attention",
        {"attention_backend": "torch"},
        "a CPU has torch's only",
    ),
    Part("pages of several tokens", {"page_size": 1}),
)


@dataclass
class Outcome:
    """What came of the runs of one variant."""

    speeds: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    equal: int = 0
    answers: int = 0

    def add(self, run: Run, expected: list[list[int]]) -> None:
        """One more run; `expected` are the answers with every part on."""
        tokens = sum(map(len, run.answers))
        self.speeds.append(tokens / run.seconds)
        self.gaps += run.gaps()
        self.hits.append(run.hit_rate)
        pairs = zip(run.answers, expected, strict=True)
        self.equal += sum(got == want for got, want in pairs)
        self.answers += len(expected)

    def row(self, name: str, whole: Outcome) -> dict[str, Value]:
        speed = statistics.median(self.speeds)
        return {
            "without": name,
            "tokens/s": speed,
            "of all": f"{speed / statistics.median(whole.speeds):.2f} x",
            "gap p99 ms": self._longest_gap(),
            "hit rate": f"{statistics.median(self.hits):.0%}",
            "equal answers": f"{self.equal} of {self.answers}",
        }

    def _longest_gap(self) -> float | None:
        """In ms, the rarest hundredth aside; None if no answer has two tokens."""
        return float(np.percentile(self.gaps, 99)) * 1e3 if self.gaps else None


def measure_ablation(
    subject: Subject, work: Workload, rounds: int, say: Say
) -> Report:
    """Each variant in turn, in every round; answers are greedy, and compared.

    An engine is made anew for every run, for they would not fit side by side.
    Equal answers are promised in float32: with fewer bits the sums depend on
    what else is in a batch. Unless the subject has other settings, a quarter of
    the requests runs at once, and a long prompt takes several steps.
    """
    usual = {
        "page_size": 16,
        "max_running_req": max(1, work.requests // 4),
        "max_extend_tokens": max(128, work.long // 4),
    }
    subject = replace(subject, settings=usual | subject.settings)
    device = subject.torch_device
    off = {p.name: p for p in PARTS if not p.only_gpu or device.type == "cuda"}
    outcomes = {name: Outcome() for name in (NOTHING, *off)}
    for number in range(rounds):
        expected: list[list[int]] = []
        for name, outcome in outcomes.items():
            changes = off[name].off if name in off else {}
            run = _run(subject, work, number, changes)
            expected = expected or run.answers
            outcome.add(run, expected)
            say(
                f"round {number + 1}, without {name}: "
                f"{outcome.speeds[-1]:,.1f} tokens/s"
            )
    whole = outcomes[NOTHING]
    report = Report(
        f"{work.requests} requests, one part of the engine off at a time",
        [*whole.row(NOTHING, whole)],
        setup=machine(device) | {"dtype": subject.dtype} | subject.settings,
    )
    report.rows.append(whole.row(NOTHING, whole))
    for part in PARTS:
        if part.name in outcomes:
            report.rows.append(outcomes[part.name].row(part.name, whole))
        else:
            report.rows.append(
                {"without": part.name, "tokens/s": part.only_gpu}
            )
    return report


def _run(
    subject: Subject, work: Workload, number: int, changes: dict[str, Any]
) -> Run:
    with subject.engine(**changes) as llm:
        llm.warm_up(work)
        vocab = llm.engine.sampler.vocab_size
        return llm.run(work.draw(vocab, number), work.temperature)
