"""Decode steps as recordings: one launch in place of hundreds."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import Progress

from minisgl.attention import BaseAttnBackend
from minisgl.core import Batch, Req, SamplingParams, get_global_ctx
from minisgl.engine.config import EngineConfig
from minisgl.engine.prefill_graph import PrefillGraphs
from minisgl.models import BaseLLMModel
from minisgl.utils import init_logger, nvtx_annotate
from minisgl.utils.device import Stream
from minisgl.utils.recorded import RecordedRun, new_recordings

logger = init_logger(__name__)

LARGEST = 256
"""Requests of the largest recorded step, unless somebody asks for another."""

_SPARE = 256 << 20
"""Bytes that recordings must leave to the prefill batches to come."""


@dataclass
class GraphCaptureBuffer:
    """What a recorded step reads and writes, for up to B requests.

    input_ids, out_loc, positions: int32 [B], as in `Batch`.
    logits: float [B, vocab], in the dtype of the model.
    """

    input_ids: torch.Tensor
    out_loc: torch.Tensor
    positions: torch.Tensor
    logits: torch.Tensor

    @classmethod
    def init(
        cls, bs: int, vocab_size: int, device: torch.device
    ) -> GraphCaptureBuffer:
        """Zeros, and logits of whatever."""
        zeros = torch.zeros(3, bs, dtype=torch.int32, device=device)
        logits = torch.empty(bs, vocab_size, dtype=torch.float32, device=device)
        return cls(zeros[0], zeros[1], zeros[2], logits)

    def set_batch(self, batch: Batch) -> None:
        """Make the buffer's head the tensors of a batch to be captured."""
        size = batch.padded_size
        batch.input_ids = self.input_ids[:size]
        batch.out_loc = self.out_loc[:size]
        batch.positions = self.positions[:size]

    def copy_from(self, batch: Batch) -> None:
        """Put the tensors of a batch where recordings read them."""
        size = batch.padded_size
        self.input_ids[:size] = batch.input_ids
        self.out_loc[:size] = batch.out_loc
        self.positions[:size] = batch.positions


def make_dummy(page_table: torch.Tensor, slot: int) -> Req:
    """A request of one token, which fills up batches.

    It has the last row, and all of it is `slot`: if neither is handed out, what
    is computed for it harms nobody.
    """
    page_table[-1] = slot
    return Req(
        input_ids=torch.zeros(1, dtype=torch.int32),
        table_idx=len(page_table) - 1,
        cached_len=0,
        output_len=1,
        uid=-1,
        sampling_params=SamplingParams(max_tokens=1),
        cache_handle=None,  # type: ignore[arg-type]
    )


def largest_batch(
    config: EngineConfig, backend: BaseAttnBackend, device: torch.device
) -> int:
    """Requests of the largest step to capture; 0 captures none."""
    wanted = config.cuda_graph_max_bs
    if wanted is None:
        # Where a launch costs little, recording saves little.
        cheap = device.type != "cuda"
        wanted = 0 if cheap or backend.pads_to_context else LARGEST
    return min(wanted, config.max_running_req)


def _determine_cuda_graph_bs(
    cuda_graph_bs: list[int] | None, cuda_graph_max_bs: int | None
) -> list[int]:
    """Batch sizes to capture, rising.

    Those that are given, else 1, 2, 4 and the multiples of 8 up to the largest.
    """
    if cuda_graph_bs is not None:
        return sorted(set(cuda_graph_bs))
    largest = LARGEST if cuda_graph_max_bs is None else cuda_graph_max_bs
    sizes = {1, 2, 4, *range(8, largest + 1, 8), largest}
    return sorted(size for size in sizes if 0 < size <= largest)


def _fitting(sizes: list[int], vocab_size: int, free_memory: int) -> list[int]:
    """The sizes whose recordings fit into the memory that is free, in bytes.

    Logits are most of what a decode step needs: as the model makes them, and
    once more in the buffer. Recordings of all sizes share the memory of the
    largest one.
    """
    room = free_memory - _SPARE
    fit = [size for size in sizes if 8 * size * vocab_size <= room]
    if len(fit) < len(sizes):
        logger.warning(
            f"no recordings of batches over {max(fit, default=0)}: only "
            f"{mem_GB(free_memory)} are free; lower memory_ratio or "
            "cuda_graph_max_bs"
        )
    return fit


def mem_GB(size: int) -> str:
    """Bytes in words."""
    return f"{size / 2**30:.2f} GiB"


def get_free_memory(device: torch.device) -> int:
    """Bytes of the device that nobody holds; 0 on a CPU, where none count."""
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


class GraphRunner:
    """Runs decode batches of the sizes that it has captured, and pads to them.

    stream: the engine's; recordings are made and replayed there.
    cuda_graph_bs, cuda_graph_max_bs: the sizes, or the largest; 0 is none.
    free_memory: bytes that are free beside weights and KV pool, on the rank
        that has least.
    max_seq_len: tokens of the longest request.
    dummy_req: fills up batches; its row and its page are nobody else's.
    """

    def __init__(
        self,
        stream: Stream,
        device: torch.device,
        model: BaseLLMModel,
        attn_backend: BaseAttnBackend,
        cuda_graph_bs: list[int] | None,
        cuda_graph_max_bs: int | None,
        free_memory: int,
        max_seq_len: int,
        vocab_size: int,
        dummy_req: Req,
    ) -> None:
        self.stream = stream
        self.device = device
        self.attn_backend = attn_backend
        self.dummy_req = dummy_req
        self._ctx = get_global_ctx()
        self.graph_map: dict[int, RecordedRun] = {}
        self.prefill_graphs: PrefillGraphs | None = None
        sizes = _determine_cuda_graph_bs(cuda_graph_bs, cuda_graph_max_bs)
        self.graph_bs_list = _fitting(sizes, vocab_size, free_memory)
        if self.graph_bs_list:
            self._capture_graphs(max_seq_len, vocab_size, model)

    @property
    def max_graph_bs(self) -> int:
        """The largest batch that there is a recording for; 0 without any."""
        return max(self.graph_map, default=0)

    def _capture_graphs(
        self, max_seq_len: int, vocab_size: int, model: BaseLLMModel
    ) -> None:
        """Largest first: the memory it needs is enough for all others."""
        before = get_free_memory(self.device)
        largest = self.graph_bs_list[-1]
        self.buffer = GraphCaptureBuffer.init(largest, vocab_size, self.device)
        row = self._ctx.page_table[self.dummy_req.table_idx]
        self.buffer.out_loc.fill_(row[0])
        self.attn_backend.init_capture_graph(max_seq_len, self.graph_bs_list)
        self.buffer.logits = self._logits_like(largest, model)
        recordings = new_recordings(self.stream)
        console = Console(stderr=True)
        show = sys.stderr.isatty()
        with Progress(console=console, transient=True, disable=not show) as bar:
            for bs in bar.track(
                self.graph_bs_list[::-1], description="Capturing graphs"
            ):
                self.graph_map[bs] = recordings()
                self._capture(bs, model)
        self.prefill_graphs = PrefillGraphs(
            self.attn_backend,
            model,
            max_seq_len,
            self.dummy_req,
            self.buffer.logits,
            recordings,
        )
        # Others may have given memory back meanwhile.
        used = max(0, before - get_free_memory(self.device))
        logger.info(
            f"recorded steps of {len(self.graph_map)} sizes, up to {largest} "
            f"requests, and prompts of {len(self.prefill_graphs)} sizes"
            + (f", in {mem_GB(used)} of the GPU" if used else "")
        )

    @torch.inference_mode()
    def _logits_like(self, bs: int, model: BaseLLMModel) -> torch.Tensor:
        """Room for logits in the dtype in which the model makes them.

        Who draws from them reads half as much as in float32.
        """
        batch = Batch([self.dummy_req] * bs, "decode")
        self.buffer.set_batch(batch)
        self.attn_backend.prepare_metadata(batch)
        with self._ctx.forward_batch(batch):
            return torch.empty_like(model.forward())

    def _capture(self, bs: int, model: BaseLLMModel) -> None:
        batch = Batch([self.dummy_req] * bs, "decode")
        self.buffer.set_batch(batch)
        self.attn_backend.prepare_for_capture(batch)

        @torch.inference_mode()
        def run() -> None:
            with self._ctx.forward_batch(batch):
                self.buffer.logits[:bs] = model.forward()

        self.graph_map[bs].capture(run)

    def can_use_cuda_graph(self, batch: Batch) -> bool:
        """Whether there is a recording that is large enough.

        Of prefill batches it is those that `pad_batch` has filled up.
        """
        if batch.is_prefill:
            graphs = self.prefill_graphs
            return graphs is not None and graphs.has_padded(batch)
        return batch.size <= self.max_graph_bs

    @nvtx_annotate("GraphReplay")
    def replay(self, batch: Batch) -> torch.Tensor:
        """Run a padded batch: logits [requests, vocab], the buffer's.

        They are overwritten by the next replay.
        """
        if batch.is_prefill:
            assert self.prefill_graphs is not None
            return self.prefill_graphs.replay(batch)
        self.buffer.copy_from(batch)
        self.attn_backend.prepare_for_replay(batch)
        self.graph_map[batch.padded_size].replay()
        return self.buffer.logits[: batch.size]

    def pad_batch(self, batch: Batch) -> None:
        """Fill up to the next size with the dummy; before tensors are made."""
        if batch.is_prefill:
            if self.prefill_graphs is not None:
                self.prefill_graphs.pad(batch)
        elif self.can_use_cuda_graph(batch):
            size = min(bs for bs in self.graph_bs_list if bs >= batch.size)
            dummies = [self.dummy_req] * (size - batch.size)
            batch.padded_reqs = batch.reqs + dummies

    def destroy_cuda_graphs(self) -> None:
        """Give back their memory; batches run without them from here on."""
        self.graph_map.clear()
        self.prefill_graphs = None
        gc.collect()
