"""Greedy answers of transformers whose logits are edited before each choice."""

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from minisgl.core import SamplingParams
from tests.parity import Reference, _load


def penalized(
    logits: Sequence[float],
    prompt: Sequence[int],
    answer: Sequence[int],
    params: SamplingParams,
) -> list[float]:
    """Penalties and bias, written down plainly."""
    result = list(logits)
    for token in {*prompt, *answer}:
        factor = params.repetition_penalty
        result[token] *= 1 / factor if result[token] > 0 else factor
    for token in set(answer):
        result[token] -= answer.count(token) * params.frequency_penalty
        result[token] -= params.presence_penalty
    for name, bias in params.logit_bias.items():
        result[int(name)] += bias if bias > -100 else -torch.inf
    return result


def edited_reference(
    folder: Path, prompt: Sequence[int], length: int, params: SamplingParams
) -> Reference:
    """What transformers would answer if it were asked for this."""
    wishes = json.dumps(asdict(params))
    return _edited(folder, tuple(prompt), length, wishes)


@functools.cache
def _edited(
    folder: Path, prompt: tuple[int, ...], length: int, wishes: str
) -> Reference:
    params = SamplingParams(**json.loads(wishes))
    model, _ = _load(folder)
    answer: list[int] = []
    gaps = []
    with torch.inference_mode():
        for _ in range(length):
            ids = torch.tensor([[*prompt, *answer]])
            logits = model(ids, use_cache=False).logits[0, -1].float()
            edited = penalized(logits.tolist(), prompt, answer, params)
            best = torch.tensor(edited).topk(2)
            gap = best.values[0] - best.values[1]
            gaps.append(float(gap / logits.std()))
            answer.append(int(best.indices[0]))
    return Reference(answer, gaps)


def bare_logprobs(
    folder: Path, prompt: Sequence[int], answer: Sequence[int]
) -> torch.Tensor:
    """log_softmax of transformers' logits before each token, [len, vocab]."""
    model, _ = _load(folder)
    ids = torch.tensor([[*prompt, *answer[:-1]]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(prompt) - 1 :]
    return torch.log_softmax(logits.float(), -1)
