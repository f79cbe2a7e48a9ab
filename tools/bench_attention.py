"""One layer's attention by every backend: time, and bytes of keys and values a second.

Random numbers in shuffled pages, in the shape of a Qwen3 layer (8 kv heads of 128).
On a GPU the bandwidth of a copy of the same size is measured beside it: reading every
key and value once is the least that any backend can do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minisgl.attention import Demand, create_attention_backend
from minisgl.attention.choice import why_not
from minisgl.core import Batch, Context, Req, SamplingParams, set_global_ctx
from minisgl.kvcache import MHAKVCache

KV_HEADS, DIM, LAYERS = 8, 128, 2
DECODERS = [
    ("torch", 1),
    ("torch", 16),
    ("fi", 1),
    ("fi", 16),
    ("fi", 256),
    ("fa", 256),
]


@dataclass
class Shape:
    """The part of a ModelConfig that the backends ask for."""

    num_qo_heads: int
    num_kv_heads: int = KV_HEADS
    head_dim: int = DIM


@dataclass
class Timer:
    """Runs something many times and takes the median."""

    device: torch.device
    times: int
    spent: list[float] = field(default_factory=list)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def ms(self, run: Callable[[], object]) -> float:
        """Milliseconds until the device is done."""
        spent = []
        for _ in range(self.times + 3):
            self.sync()
            begin = time.perf_counter()
            run()
            self.sync()
            spent.append(1e3 * (time.perf_counter() - begin))
        return median(spent[3:])


class Bench:
    """A pool of shuffled pages with requests in it, and a backend over it."""

    def __init__(
        self,
        backend: str,
        heads: int,
        page_size: int,
        spans: list[tuple[int, int]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        longest = max(total for _, total in spans)
        row_pages = -(-longest // page_size)
        pages = row_pages * len(spans)
        self.ctx = Context(page_size)
        set_global_ctx(self.ctx)
        pool = MHAKVCache(
            KV_HEADS, LAYERS, DIM, pages, page_size, dtype, device
        )
        pool._buffer.normal_()
        self.ctx.kv_cache = pool
        order = torch.randperm(pages).unsqueeze(1) * page_size
        slots = (order + torch.arange(page_size)).int()
        self.ctx.page_table = slots.view(len(spans), -1).to(device)
        self.backend = create_attention_backend(backend, Shape(heads))  # type: ignore[arg-type]
        self.batch = self._batch(spans)
        new = sum(total - cached for cached, total in spans)
        self.q = torch.randn(new, heads, DIM, dtype=dtype, device=device)
        self.k = torch.randn(new, KV_HEADS, DIM, dtype=dtype, device=device)
        read = sum(total for _, total in spans)
        self.bytes = 2 * read * KV_HEADS * DIM * dtype.itemsize

    def _batch(self, spans: list[tuple[int, int]]) -> Batch:
        reqs, slots, handle = [], [], None
        for row, (cached, total) in enumerate(spans):
            ids = torch.zeros(total, dtype=torch.int32)
            params: Any = SamplingParams()
            reqs.append(Req(ids, row, cached, 1, row, params, handle))  # type: ignore[arg-type]
            slots.append(self.ctx.page_table[row, cached:total])
        is_decode = all(total - cached == 1 for cached, total in spans)
        batch = Batch(reqs, "decode" if is_decode else "prefill")
        batch.out_loc = torch.cat(slots)
        return batch

    def prepare(self) -> None:
        """What the host does once a step, planning included."""
        self.backend.prepare_metadata(self.batch)
        plan = getattr(self.backend, "_initialize_metadata_once", None)
        if plan is not None:
            plan(self.batch.attn_metadata)

    def layer(self) -> None:
        """What the device does in every layer."""
        self.backend.forward(self.q, self.k, self.k, 1, self.batch)


def copy_rate(timer: Timer, size: int) -> float:
    """GB/s of a copy, bytes read and bytes written both counted."""
    source = torch.empty(size, dtype=torch.uint8, device=timer.device)
    target = torch.empty_like(source)
    return 2 * size / timer.ms(lambda: target.copy_(source)) / 1e6


@torch.inference_mode()
def main(
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda",
    requests: Annotated[int, typer.Option(help="decoding at once")] = 64,
    length: Annotated[int, typer.Option(help="tokens of each")] = 1024,
    prompt: Annotated[int, typer.Option(help="tokens of a prefill")] = 4096,
    times: Annotated[int, typer.Option(help="runs of each")] = 20,
) -> None:
    """Print a table of decode steps, one of tensor cores, one of prefill."""
    where = torch.device(device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    timer = Timer(where, times)
    decode = [(length - 1, length)] * requests
    size = 2 * requests * length * KV_HEADS * DIM * dtype.itemsize
    print(f"a copy of {size >> 20} MiB: {copy_rate(timer, size):,.0f} GB/s")

    def line(
        label: str, name: str, heads: int, page: int, spans: Any, **change: Any
    ) -> None:
        demand = Demand(Shape(heads), page, dtype, where)  # type: ignore[arg-type]
        if (reason := why_not(name, demand)) is not None:
            print(f"{label:22}{reason}")
            return
        bench = Bench(name, heads, page, spans, where, dtype)
        if change:
            use_cores(bench, **change)
        host = timer.ms(bench.prepare)
        spent = timer.ms(bench.layer)
        rate = bench.bytes / spent / 1e6
        print(f"{label:22}{page:5}{host:9.2f}{spent:9.3f}{rate:9,.0f}")

    head = f"{'page':>5}{'host ms':>9}{'layer ms':>9}{'GB/s':>9}"
    print(f"\n{requests} decode, {length} tokens each, 16 heads")
    print(f"{'backend':22}{head}")
    for name, page in DECODERS:
        line(name, name, 16, page, decode)
    if why_not("fi", Demand(Shape(16), 1, dtype, where)) is None:  # type: ignore[arg-type]
        print(f"\nthe same by fi\n{'heads a kv head':22}{head}")
        for group in (1, 2, 4, 8):
            for cores in (False, True):
                label = f"{group}, {'tensor' if cores else 'CUDA'} cores"
                line(label, "fi", 8 * group, 1, decode, tensor=cores)
    print(f"\nprefill of {prompt} tokens, 16 heads\n{'backend':22}{head}")
    for name, page in DECODERS:
        line(name, name, 16, page, [(0, prompt)])


def use_cores(bench: Bench, tensor: bool) -> None:
    """Give the backend a decode wrapper of the wanted kind."""
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    backend: Any = bench.backend
    backend.decode_wrapper = BatchDecodeWithPagedKVCacheWrapper(
        backend.float_workspace_buffer, "NHD", use_tensor_cores=tensor
    )


if __name__ == "__main__":
    typer.run(main)
