"""A request that waits, and whether it ever could run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from minisgl.core import SamplingParams
from minisgl.message import UserMsg

if TYPE_CHECKING:
    from concurrent.futures import Future

    from minisgl.scheduler.prefill import ChunkedReq
    from minisgl.structure.compile import CompiledGrammar


@dataclass
class PendingReq:
    """A request whose prompt is not wholly computed.

    chunked_req: the part that is, with its row and its pages; None before.
    grammar: what has to be compiled before it may run.
    deadline: until when it waits for that, as `time.monotonic` counts.
    """

    uid: int
    input_ids: torch.Tensor
    sampling_params: SamplingParams
    chunked_req: ChunkedReq | None = None
    grammar: Future[CompiledGrammar] | None = None
    deadline: float = math.inf

    @property
    def input_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.input_ids)

    @property
    def output_len(self) -> int:
        """Most tokens to generate."""
        return self.sampling_params.max_tokens


def fit_request(
    msg: UserMsg, max_seq_len: int, pool_tokens: int, vocab_size: int
) -> UserMsg:
    """The request with max_tokens cut to what the context leaves.

    Who asks for all of that, or more, wants as many as fit, and so gets what
    the pool leaves, if this is less.

    Raises:
        ValueError: it could never run, however long it waited.
    """
    length = len(msg.input_ids)
    if length == 0:
        raise ValueError("the prompt is empty; send at least one token")
    low, high = int(msg.input_ids.min()), int(msg.input_ids.max())
    if low < 0 or high >= vocab_size:
        odd = low if low < 0 else high
        raise ValueError(
            f"token {odd} is not in the vocabulary of {vocab_size}; use the "
            "model's own tokenizer"
        )
    if length >= max_seq_len:
        raise ValueError(
            f"the prompt has {length} tokens, which leaves no room to answer: "
            f"the context holds {max_seq_len}; shorten the prompt"
        )
    output, room = msg.sampling_params.max_tokens, max_seq_len - length
    if output >= room:
        output = min(room, max(1, pool_tokens - length))
    if length + output > pool_tokens:
        raise ValueError(
            f"prompt and answer may need {length + output} tokens, the KV pool "
            f"holds {pool_tokens}; lower max_tokens or shorten the prompt"
        )
    params = replace(msg.sampling_params, max_tokens=output)
    return replace(msg, sampling_params=params)
