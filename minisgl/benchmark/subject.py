"""What is measured: a model on a device, run by our engine or by others."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError

from minisgl.benchmark.shapes import shape_folder
from minisgl.benchmark.workload import UNTIMED, Request, Workload
from minisgl.core import Context, SamplingParams, set_global_ctx
from minisgl.llm import LLM
from minisgl.message import DetokenizeMsg
from minisgl.scheduler import SchedulerConfig
from minisgl.utils import cached_load_hf_config, pick_device, resolve_dtype

WARM_UP = 4
"""Requests, which nobody times."""


@dataclass
class Run:
    """What came of answering some requests.

    seconds: from the first request to the last token.
    answers: the ids of each answer; empty where a peer does not tell.
    batches: of our engine only: for each batch when its tokens came, in seconds
        since the start, and whose they are.
    hit_rate: of the prompts' tokens, the share that was in the prefix cache.
    """

    seconds: float
    answers: list[list[int]]
    batches: list[tuple[float, list[int]]] = field(default_factory=list)
    hit_rate: float = 0.0

    def gaps(self) -> list[float]:
        """Seconds between the tokens of each answer, of all answers."""
        found: list[float] = []
        last: dict[int, float] = {}
        for now, uids in self.batches:
            found += [now - last[uid] for uid in uids if uid in last]
            last.update(dict.fromkeys(uids, now))
        return found


class TimedLLM(LLM):
    """Notes when every batch's tokens came."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sent: list[tuple[float, list[int]]] = []
        self.cached = 0
        super().__init__(*args, **kwargs)

    def offline_send_result(self, reply: list[DetokenizeMsg]) -> None:
        # Not the messages: there are as many as tokens, and to look them
        # through again and again would keep the garbage collector busy.
        self.sent.append((time.perf_counter(), [msg.uid for msg in reply]))
        self.cached += sum(msg.cached_tokens or 0 for msg in reply)
        super().offline_send_result(reply)

    def run(self, requests: Sequence[Request], temperature: float) -> Run:
        """Answer them; all are there from the start.

        Raises:
            ValueError: a request cannot get all its tokens here.
        """
        params = [
            SamplingParams(temperature, ignore_eos=True, max_tokens=r.output)
            for r in requests
        ]
        self.sent.clear()
        self.cached = 0
        begin = time.perf_counter()
        made = self.generate([r.prompt for r in requests], params, False)
        seconds = time.perf_counter() - begin
        for want, got in zip(requests, made, strict=True):
            if len(got["token_ids"]) != want.output:
                reason = got["error"] or f"ended with {got['finish_reason']}"
                raise ValueError(f"a request was not answered: {reason}")
        batches = [(moment - begin, uids) for moment, uids in self.sent]
        share = self.cached / sum(len(r.prompt) for r in requests)
        return Run(seconds, [got["token_ids"] for got in made], batches, share)

    def warm_up(self, work: Workload) -> None:
        """Let it do what it does once only: compile, record, allocate."""
        few = replace(work, requests=min(WARM_UP, work.requests))
        vocab = self.engine.sampler.vocab_size
        self.run(few.draw(vocab, UNTIMED), work.temperature)


@dataclass(frozen=True)
class Subject:
    """A model, and how to run it.

    folder: with its configuration and tokenizer, or a hub id.
    random: weights are drawn, and not in the folder.
    settings: other fields of `SchedulerConfig` than these.
    """

    folder: str
    random: bool = False
    dtype: str = "auto"
    device: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def engine(self, **changes: Any) -> Iterator[TimedLLM]:
        """Our engine, with some settings changed; its memory is given back."""
        # Whoever had the last engine may have let go of it only now, and what
        # it still holds would be missing in the pool of this one.
        free_memory()
        llm = TimedLLM(
            self.folder,
            self.dtype,
            device=self.device,
            use_dummy_weight=self.random,
            **self.settings | changes,
        )
        try:
            yield llm
        finally:
            llm.engine.shutdown()
            set_global_ctx(Context(1))
            del llm
            free_memory()

    @contextmanager
    def transformers(self) -> Iterator[Any]:
        """The same model of transformers, with weights of the same kind."""
        from transformers import AutoModelForCausalLM, GenerationConfig

        config = cached_load_hf_config(self.folder)
        dtype, device = resolve_dtype(self.dtype, config), self.torch_device
        if self.random:
            torch.manual_seed(0)
            with device:
                hf = AutoModelForCausalLM.from_config(config, dtype=dtype)
        else:
            hf = AutoModelForCausalLM.from_pretrained(self.folder, dtype=dtype)
        # An empty one: `generate` would add what the model's own asks for.
        hf.generation_config = GenerationConfig()
        try:
            yield hf.to(device).eval()
        finally:
            del hf
            free_memory()

    @property
    def torch_device(self) -> torch.device:
        """Where the model runs."""
        return pick_device(self.device)


@contextmanager
def open_subject(
    model: str | None,
    shape: str | None,
    dtype: str = "auto",
    device: str = "auto",
    settings: dict[str, Any] | None = None,
) -> Iterator[Subject]:
    """The subject for a model or for a shape, of which exactly one is named.

    Raises:
        ValueError: none or both are, or there is no such shape.
    """
    if (model is None) == (shape is None):
        raise ValueError("name either a --model or a --shape")
    if model is not None:
        yield Subject(model, False, dtype, device, settings or {})
        return
    assert shape is not None
    with shape_folder(shape) as folder:
        yield Subject(str(folder), True, dtype, device, settings or {})


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Fields of `SchedulerConfig` out of texts like ``page_size=16``.

    Raises:
        ValueError: one has another form, no such field or another type.
    """
    taken = {"model_path", "tp_info", "dtype", "device", "offline_mode"}
    known = {
        f.name
        for f in fields(SchedulerConfig)
        if f.name not in taken and not f.name.startswith("_")
    }
    types = get_type_hints(SchedulerConfig, localns={"torch": torch})
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in known:
            names = ", ".join(sorted(known))
            raise ValueError(f"{pair!r} is not NAME=VALUE with one of {names}")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        try:
            # Strict: a text is no number, and neither is true.
            found[name] = TypeAdapter(types[name]).validate_python(
                value, strict=True
            )
        except ValidationError:
            kind = getattr(types[name], "__name__", None) or types[name]
            raise ValueError(f"{name} takes {kind}, not {text!r}") from None
    return found


def free_memory() -> None:
    """Give the device back what nobody refers to."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
