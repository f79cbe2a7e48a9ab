"""Backends whose prefill batches can be recorded, as decode batches are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class RecordsPrefill(ABC):
    """What such a backend does beside the interface of all.

    After `init_prefill_graphs` it takes prefill batches in
    `prepare_for_capture` and `prepare_for_replay`, too. They have as many
    requests as said there, dummies included, and a number of tokens that was
    asked for; requests at the end may have no new token.
    """

    @abstractmethod
    def init_prefill_graphs(
        self, max_seq_len: int, requests: int, sizes: Sequence[int]
    ) -> list[int]:
        """Make what recorded prefill batches read.

        max_seq_len: tokens of the longest request.
        requests: of every recorded batch.
        sizes: numbers of new tokens, rising.
        Returns those of the sizes that can be recorded.
        """
