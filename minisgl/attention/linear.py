"""Linear attention over the pool of states."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from minisgl.attention.segments import Wave, cut_into_waves
from minisgl.core import Batch, get_global_ctx
from minisgl.kernel.delta import DeltaWeights, delta_decode, delta_prefill
from minisgl.kvcache.state_pool import StatePool
from minisgl.utils.device import to_device


@dataclass
class LinearMetadata:
    """Where the states of a batch are.

    rows: int64 [requests], the slot of each in a decode batch.
    waves: of a prefill batch, to be run one after the other.
    """

    rows: torch.Tensor
    waves: list[Wave] = field(default_factory=list)


class LinearAttnBackend:
    """Runs the gated delta rule for the layers that keep a state."""

    def __init__(self, states: StatePool) -> None:
        self.states = states
        self._ctx = get_global_ctx()

    def prepare(self, batch: Batch) -> LinearMetadata:
        """What the layers need to know; called once for a prefill batch."""
        device = self.states.conv.device
        rows = [req.table_idx for req in batch.padded_reqs]
        metadata = LinearMetadata(to_device(rows, torch.int64, device))
        if batch.is_prefill:
            metadata.waves = cut_into_waves(
                batch.reqs, self.states, self._ctx.page_size, device
            )
        return metadata

    def forward(
        self,
        qkv: torch.Tensor,
        gates: torch.Tensor,
        weights: DeltaWeights,
        layer_id: int,
        metadata: LinearMetadata,
    ) -> torch.Tensor:
        """qkv [T, channels], gates [T, 2 v_heads] -> [T, v_heads, v_dim].

        layer_id: among the linear layers.
        """
        states = self.states.conv[layer_id], self.states.recurrent[layer_id]
        if metadata.waves:
            return delta_prefill(qkv, gates, weights, *states, metadata.waves)
        return delta_decode(qkv, gates, weights, *states, metadata.rows)

    def init_capture(self, max_bs: int) -> None:
        """Make what recorded decode steps read."""
        device = self.states.conv.device
        self._rows = torch.zeros(max_bs, dtype=torch.int64, device=device)

    def prepare_for_capture(self, batch: Batch) -> LinearMetadata:
        """Metadata of the dummies, at the place where it will always be."""
        rows = self._rows[: batch.padded_size]
        rows.fill_(batch.padded_reqs[0].table_idx)
        return LinearMetadata(rows)

    def prepare_for_replay(self, metadata: LinearMetadata) -> None:
        """Put the rows of a padded batch there."""
        self._rows[: len(metadata.rows)] = metadata.rows
