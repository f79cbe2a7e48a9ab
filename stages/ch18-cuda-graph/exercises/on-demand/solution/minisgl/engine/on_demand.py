"""Recordings that are made when a batch wants one, and given up again."""

from __future__ import annotations

import torch

from minisgl.core import Batch
from minisgl.engine.graph import GraphCaptureBuffer, GraphRunner
from minisgl.models import BaseLLMModel
from minisgl.utils.recorded import new_recordings


class OnDemandRunner(GraphRunner):
    """Captures nothing at the start and holds `most` recordings at once.

    `graph_map` has them by size, the one that was replayed longest ago first.
    """

    most = 4

    def _capture_graphs(
        self, max_seq_len: int, vocab_size: int, model: BaseLLMModel
    ) -> None:
        """Make what recordings read and write; called once, at the start."""
        self._model = model
        largest = self.graph_bs_list[-1]
        self.buffer = GraphCaptureBuffer.init(largest, vocab_size, self.device)
        self.attn_backend.init_capture_graph(max_seq_len, self.graph_bs_list)
        self._new_recording = new_recordings(self.stream)

    @property
    def max_graph_bs(self) -> int:
        """The largest batch that can be recorded; 0 if none can."""
        return max(self.graph_bs_list, default=0)

    def replay(self, batch: Batch) -> torch.Tensor:
        """As in `GraphRunner`; a size that there is no recording of is recorded
        first. This recording is then the one that was replayed last."""
        size = batch.padded_size
        if size not in self.graph_map:
            self._make_room()
            self._record(size)
        self.graph_map[size] = self.graph_map.pop(size)
        return super().replay(batch)

    def _make_room(self) -> None:
        """Give up recordings until there is room for one more.

        The first to go is the one that was replayed longest ago.
        """
        while len(self.graph_map) >= self.most:
            del self.graph_map[next(iter(self.graph_map))]

    def _record(self, size: int) -> None:
        """Capture a step of `size` requests, between two steps of real ones.

        Capturing runs the model (`_capture`). It reads what the buffer holds and
        stores keys and values: nobody but the dummy may notice.
        """
        row = self._ctx.page_table[self.dummy_req.table_idx]
        # The buffer still has the last batch's: its slots are real requests'.
        self.buffer.out_loc.fill_(row[0])
        self.graph_map[size] = self._new_recording()
        self._capture(size, self._model)
