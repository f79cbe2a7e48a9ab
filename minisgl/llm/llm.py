"""Offline generation: many prompts in, all answers out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from minisgl.core import SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.engine import FAILED_TOKEN
from minisgl.message import DetokenizeMsg, TokenLogprob, UserMsg
from minisgl.scheduler import SchedulerConfig
from minisgl.scheduler.speculative import SpeculativeScheduler
from minisgl.utils import load_tokenizer


@dataclass
class RequestStatus:
    """A request of `generate` and what has come of it."""

    uid: int
    input_ids: list[int]
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None


class LLM(SpeculativeScheduler):
    """A scheduler that is its own client.

    model_path: a folder or a hub id.
    dtype: what to run in; ``auto`` is what config.json states.
    kwargs: other fields of `SchedulerConfig`.
    """

    def __init__(
        self, model_path: str, dtype: torch.dtype | str = "auto", **kwargs: Any
    ) -> None:
        rank = DistributedInfo(0, 1)
        config = SchedulerConfig(
            model_path, rank, dtype, offline_mode=True, **kwargs
        )
        super().__init__(config)
        self.tokenizer = load_tokenizer(model_path)
        self._status: dict[int, RequestStatus] = {}
        self._done = 0
        self._next_uid = 0

    def _tokenize_one(self, prompt: list[int] | str) -> torch.Tensor:
        ids = (
            self.tokenizer(prompt).input_ids
            if isinstance(prompt, str)
            else prompt
        )
        size = self.engine.sampler.vocab_size
        for token in ids:
            if not isinstance(token, int) or not 0 <= token < size:
                raise ValueError(
                    f"token {token!r} is not in the vocabulary of {size}"
                )
        return torch.tensor(ids, dtype=torch.int32)

    def offline_send_result(self, reply: list[DetokenizeMsg]) -> None:
        for msg in reply:
            status = self._status[msg.uid]
            if msg.next_token != FAILED_TOKEN:
                status.output_ids.append(msg.next_token)
            if msg.logprobs is not None:
                status.logprobs.append(msg.logprobs)
            status.finish_reason, status.error = msg.finish_reason, msg.error
            self._done += msg.finished

    def generate(
        self,
        prompts: Sequence[str | list[int]],
        sampling_params: Sequence[SamplingParams]
        | SamplingParams
        | None = None,
        progress: bool = True,
    ) -> list[dict[str, Any]]:
        """Answer all prompts, in their order.

        prompts: texts or lists of token ids.
        sampling_params: one for all, or one for each.
        progress: show a progress bar, if there is a terminal.
        Returns for each a dict with `text`, `token_ids`, `finish_reason` (stop,
        length, refused or error), `error`, which is None but for a request that
        was refused or failed, and `logprobs`, a `TokenLogprob` for each token
        if the parameters ask for them, else None.

        Raises:
            TypeError: `prompts` is no list, or holds something else.
            ValueError: not as many parameters as prompts.
        """
        params = _match_params(prompts, sampling_params)
        self._done = 0
        try:
            pairs = zip(prompts, params, strict=True)
            statuses = [self._submit(prompt, want) for prompt, want in pairs]
            self._run(len(statuses), progress and sys.stderr.isatty())
        except BaseException:
            # Ctrl-C can come in the middle of anything: start from nothing.
            self.inbox.clear()
            self._reset()
            raise
        finally:
            self._status.clear()
        return [self._result(status) for status in statuses]

    def _submit(
        self, prompt: str | list[int], params: SamplingParams
    ) -> RequestStatus:
        status = RequestStatus(self._next_uid, [])
        self._next_uid += 1
        self._status[status.uid] = status
        try:
            ids = self._tokenize_one(prompt)
        except (TypeError, ValueError) as error:
            status.finish_reason, status.error = "refused", str(error)
            self._done += 1
        else:
            status.input_ids = ids.tolist()
            self.inbox.append(UserMsg(status.uid, ids, params))
        return status

    @torch.inference_mode()
    def _run(self, total: int, show: bool) -> None:
        data = None
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not show) as bar:
            task = bar.add_task("Generating", total=total)
            while self.inbox or self.has_work or data is not None:
                data = self.step(data)
                bar.update(task, completed=self._done)

    def _result(self, status: RequestStatus) -> dict[str, Any]:
        # No clean-up: a folder may ask for one, which would take away spaces.
        text = self.tokenizer.decode(
            status.output_ids,
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return {
            "text": text,
            "token_ids": status.output_ids,
            "finish_reason": status.finish_reason,
            "error": status.error,
            "logprobs": status.logprobs or None,
        }


def _match_params(
    prompts: Sequence[str | list[int]],
    given: Sequence[SamplingParams] | SamplingParams | None,
) -> Sequence[SamplingParams]:
    """Parameters for every prompt."""
    if isinstance(prompts, str):
        raise TypeError("prompts is a list; for a single one write [prompt]")
    for prompt in prompts:
        if not isinstance(prompt, str | list):
            raise TypeError(
                "a prompt is a text or a list of token ids, not "
                f"{type(prompt).__name__}; for a single one write [prompt]"
            )
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * len(prompts)
    if len(given) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts but {len(given)} parameters")
    if odd := [p for p in given if not isinstance(p, SamplingParams)]:
        raise TypeError(f"parameters are SamplingParams, not {odd[0]!r}")
    return given
