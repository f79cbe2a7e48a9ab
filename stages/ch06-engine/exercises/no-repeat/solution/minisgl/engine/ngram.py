"""A logits processor that forbids to say the same run of tokens twice."""

from __future__ import annotations

import torch

from minisgl.core import Batch
from minisgl.engine.sample import LogitsEdit

__all__ = ["NoRepeatNgram", "banned_tokens"]


def banned_tokens(ids: list[int], size: int) -> set[int]:
    """Tokens after which the last `size` tokens would be in `ids` already.

    With a size of 1 that is every token of `ids`; none if `ids` is shorter than
    a run.
    """
    before = size - 1
    tail = ids[len(ids) - before :]
    starts = range(len(ids) - before)
    return {ids[i + before] for i in starts if ids[i : i + before] == tail}


class NoRepeatNgram:
    """Forbids each request to repeat a run of `size` tokens of its own.

    Prompt and answer count alike.

    Raises:
        ValueError: a size under 1.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size = size

    def __call__(self, batch: Batch) -> LogitsEdit | None:
        """What to do to the logits of this batch; None if nothing is forbidden.

        The edit sets forbidden logits to -inf, in a copy.
        """
        banned = [
            (row, token)
            for row, req in enumerate(batch.reqs)
            for token in banned_tokens(req.input_ids.tolist(), self.size)
        ]
        if not banned:
            return None
        rows, tokens = torch.tensor(banned).unbind(1)

        def edit(logits: torch.Tensor) -> torch.Tensor:
            where = rows.to(logits.device), tokens.to(logits.device)
            return logits.index_put(where, logits.new_tensor(-torch.inf))

        return edit
