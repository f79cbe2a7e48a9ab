"""Where linear-attention layers keep what they know of the past."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from minisgl.models.linear_config import LinearConfig


@dataclass(eq=False)
class Snapshot:
    """The state of some request when it had `length` tokens.

    slot: where it lies; None once the place has been given to another.
    """

    length: int
    slot: int | None


class StatePool:
    """The states of all linear layers: of running requests, and snapshots.

    A slot holds both states of every layer. Slot r is the row r of the page
    table, the dummy's included; one slot is always zeros, a new request's past;
    the others are for snapshots.

    recurrent: float32 [layers, slots, v_heads, k_dim, v_dim].
    conv: [layers, slots, channels, conv_width - 1], the last inputs of the
        convolution, oldest first.
    """

    def __init__(
        self,
        config: LinearConfig,
        num_rows: int,
        num_snapshots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.zeros = num_rows
        self.num_snapshots = num_snapshots
        slots = num_rows + 1 + num_snapshots
        heads = (config.num_v_heads, config.k_dim, config.v_dim)
        self.recurrent = torch.zeros(
            (config.num_layers, slots, *heads),
            dtype=torch.float32,
            device=device,
        )
        self.conv = torch.zeros(
            (
                config.num_layers,
                slots,
                sum(config.parts),
                config.conv_width - 1,
            ),
            dtype=dtype,
            device=device,
        )
        self.clear()

    @property
    def nbytes(self) -> int:
        return self.recurrent.nbytes + self.conv.nbytes

    def clear(self) -> None:
        """Forget all snapshots."""
        first = self.zeros + 1
        self._free = list(range(first, first + self.num_snapshots))
        self._kept: dict[Snapshot, None] = {}

    @property
    def num_free(self) -> int:
        """Slots for snapshots that hold none."""
        return len(self._free)

    def take(
        self, length: int, busy: Collection[Snapshot] = ()
    ) -> Snapshot | None:
        """A place for a state of so many tokens, to be written by a batch.

        The snapshot that was of use least recently loses its place, if it has
        to be and is not `busy`. None: there is nothing to take.
        """
        if not self._free:
            old = next((s for s in self._kept if s not in busy), None)
            if old is None:
                return None
            self.release(old)
        return Snapshot(length, self._free.pop())

    def keep(self, snapshot: Snapshot) -> None:
        """It is known by a tree now, or of use once more."""
        self._kept.pop(snapshot, None)
        self._kept[snapshot] = None

    def release(self, snapshot: Snapshot) -> None:
        """Nobody wants it any more; its place is free, at once.

        A batch in flight may still read or write there. Whoever is given the
        place is in a later batch, and the device runs them in order.
        """
        self._kept.pop(snapshot, None)
        if snapshot.slot is not None:
            self._free.append(snapshot.slot)
            snapshot.slot = None


def slot_bytes(config: LinearConfig, dtype: torch.dtype) -> int:
    """Bytes of one slot."""
    return StatePool(config, 0, 0, dtype, torch.device("meta")).nbytes
