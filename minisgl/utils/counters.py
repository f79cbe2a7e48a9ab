"""The counters of many requests at once, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from minisgl.core import Req

Ints = NDArray[np.int64]


class Counters(NamedTuple):
    """int64 [B] each, of B requests, in their order; fields as in `Req`."""

    table_idx: Ints
    cached_len: Ints
    device_len: Ints

    @classmethod
    def of(cls, reqs: Sequence[Req]) -> Counters:
        """Read them once: what is computed from here on is a few array calls.

        For a full batch, a Python loop that does the same for each request
        costs the host more than the device needs for a layer.
        """
        return cls(
            np.array([req.table_idx for req in reqs], dtype=np.int64),
            np.array([req.cached_len for req in reqs], dtype=np.int64),
            np.array([req.device_len for req in reqs], dtype=np.int64),
        )

    @property
    def extend_len(self) -> Ints:
        """Tokens the next step must compute."""
        return self.device_len - self.cached_len
