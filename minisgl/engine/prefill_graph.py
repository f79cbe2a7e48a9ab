"""Short prefill batches as recordings, too: what arrives holds nobody up long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from minisgl.attention import BaseAttnBackend
from minisgl.attention.recorded_prefill import RecordsPrefill
from minisgl.core import Batch, Req, get_global_ctx
from minisgl.models import BaseLLMModel
from minisgl.utils import init_logger
from minisgl.utils.recorded import RecordedRun

logger = init_logger(__name__)

SIZES = (
    *(64, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024),
    *(1280, 1536, 2048),
)
"""New tokens of the recorded batches. With many more, launching them takes the
host no longer than computing them takes the device."""

REQUESTS = 8
"""Requests of such a batch, at most; fewer if no decode batch has as many."""


def make_filler(dummy: Req, tokens: int) -> Req:
    """A dummy that computes so many tokens; with 0 it has one, known already."""
    ids = torch.zeros(max(tokens, 1), dtype=torch.int32)
    filler = replace(dummy, input_ids=ids)
    filler.cached_len = filler.device_len - tokens
    return filler


class PrefillGraphs:
    """Runs prefill batches of a few requests by recordings, padded to a size.

    A batch is filled up with dummies: one takes the tokens that are left to the
    size, and others have none. Their row and its page are nobody else's.

    max_seq_len: tokens of the longest request, and of a row of dummies.
    logits: [n, vocab] in the dtype of the model, at least a row a request; every
        replay overwrites them.
    recordings: makes an empty one.
    """

    def __init__(
        self,
        backend: BaseAttnBackend,
        model: BaseLLMModel,
        max_seq_len: int,
        dummy_req: Req,
        logits: torch.Tensor,
        recordings: Callable[[], RecordedRun],
    ) -> None:
        self._backend = backend
        self._dummy = dummy_req
        self._idle = make_filler(dummy_req, 0)
        self._requests = min(REQUESTS, len(logits))
        self._logits = logits[: self._requests]
        self._ctx = get_global_ctx()
        self._runs: dict[int, RecordedRun] = {}
        if not isinstance(backend, RecordsPrefill):
            return
        sizes = [size for size in SIZES if size <= max_seq_len]
        sizes = backend.init_prefill_graphs(
            max_seq_len, self._requests + 1, sizes
        )
        if not sizes:
            return
        row = self._ctx.page_table[dummy_req.table_idx]
        self._ids, self._positions, self._out_loc = torch.zeros(
            3, sizes[-1], dtype=torch.int32, device=row.device
        )
        self._out_loc.fill_(row[0])
        # Largest first: the memory it needs is enough for all others.
        for size in sizes[::-1]:
            try:
                self._runs[size] = self._capture(size, model, recordings())
            except torch.OutOfMemoryError:
                logger.warning(
                    f"no recordings of prompts of {size} tokens: no memory is "
                    "left; lower memory_ratio"
                )

    def __len__(self) -> int:
        """Recordings that there are."""
        return len(self._runs)

    def _capture(
        self, size: int, model: BaseLLMModel, recording: RecordedRun
    ) -> RecordedRun:
        batch = Batch([self._idle] * self._requests, "prefill")
        batch.padded_reqs = [*batch.reqs, make_filler(self._dummy, size)]
        batch.input_ids = self._ids[:size]
        batch.positions = self._positions[:size]
        batch.out_loc = self._out_loc[:size]
        self._backend.prepare_for_capture(batch)

        @torch.inference_mode()
        def run() -> None:
            with self._ctx.forward_batch(batch):
                self._logits.copy_(model.forward())

        recording.capture(run)
        return recording

    def pad(self, batch: Batch) -> None:
        """Fill up to the next size, if there is a recording of it."""
        tokens = sum(req.extend_len for req in batch.reqs)
        size = min((n for n in self._runs if n >= tokens), default=0)
        if batch.size > self._requests or size == 0:
            return
        rest = [self._idle] * (self._requests - batch.size)
        rest.append(make_filler(self._dummy, size - tokens))
        batch.padded_reqs = batch.reqs + rest

    def has_padded(self, batch: Batch) -> bool:
        """Whether a batch is filled up, and so to be replayed."""
        return batch.padded_reqs[-1].table_idx == self._dummy.table_idx

    def replay(self, batch: Batch) -> torch.Tensor:
        """Run a padded batch: logits [requests, vocab]."""
        size = len(batch.input_ids)
        self._ids[:size] = batch.input_ids
        self._positions[:size] = batch.positions
        self._out_loc[:size] = batch.out_loc
        self._backend.prepare_for_replay(batch)
        # A recording does not wait, layer by layer, for keys that a lower tier
        # of the pool still sends.
        for layer in range(self._ctx.kv_cache.num_layers):
            self._ctx.kv_cache.k_cache(layer)
        self._runs[size].replay()
        return self._logits[: batch.size]
