"""Guesses at how requests go on, for one step of the model to check."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from minisgl.core import Req


class Draft(NamedTuple):
    """A guess at the next tokens of one request; it may be empty.

    probs: float32 [tokens, vocab], the distributions from which the tokens were
        drawn; None if they are simply what somebody says.
    """

    tokens: list[int]
    probs: torch.Tensor | None = None


class BaseDrafter(ABC):
    """Guesses. What it guesses decides how long a text takes, never the text."""

    @abstractmethod
    def propose(
        self, reqs: Sequence[Req], limits: Sequence[int]
    ) -> list[Draft]:
        """A draft for each request, no longer than its limit.

        The host knows all tokens of these requests. Ranks that guess for
        themselves must guess the same.
        """

    @abstractmethod
    def forget(self, req: Req) -> None:
        """A request has ended; no matter whether it was ever guessed for."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all of them."""

    def check_integrity(self) -> None:
        """Raise RuntimeError if something is still held with nothing to run."""
        return


class NgramDrafter(BaseDrafter):
    """Guesses that a text goes on as it did before: prompt lookup.

    shortest, longest: how many of the last tokens must agree, and how many are
        looked at.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest

    def propose(
        self, reqs: Sequence[Req], limits: Sequence[int]
    ) -> list[Draft]:
        bounds = self._shortest, self._longest
        pairs = zip(reqs, limits, strict=True)
        return [
            Draft(look_up(req.input_ids.numpy(), *bounds, limit))
            for req, limit in pairs
        ]

    def forget(self, req: Req) -> None:
        pass  # what it goes by is kept in the requests

    def reset(self) -> None:
        pass


def look_up(
    ids: NDArray[np.int32], shortest: int, longest: int, count: int
) -> list[int]:
    """`count` tokens that followed where the text was before as it ends now.

    ids: int32 [n], n > 0. Of all earlier places whose last tokens are those of
    the end, at least `shortest` of them, the one where most are, counting no
    further than `longest`; of several the latest. What followed it may run into
    the end of the text: then it begins again, as a text of one period does.
    Empty if there is no such place.

    This is prompt lookup (Yang et al., arXiv:2304.04487, with a prompt for a
    reference; the n-grams are from Saxena, 2023). One pass over the text finds
    the last token; the places that are left are few.
    """
    places, matched = np.flatnonzero(ids[:-1] == ids[-1]), 1
    while matched < min(longest, len(ids) - 1):
        # The places have room for one token more before those that agree.
        further = places[places >= matched]
        same = ids[further - matched] == ids[-1 - matched]
        if not same.any():
            break
        places, matched = further[same], matched + 1
    if len(places) == 0 or matched < shortest:
        return []
    return np.resize(ids[places[-1] + 1 :], count).tolist()
