"""An LLM that counts what it reuses, and two mistakes to make on purpose."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import minisgl.attention.segments as segments
import minisgl.attention.stateful as stateful
from minisgl.attention.stateful import StatefulBackend
from minisgl.core import Batch, SamplingParams
from minisgl.kvcache.hybrid_cache import HybridHandle
from minisgl.kvcache.state_pool import StatePool
from minisgl.llm import LLM


class CountingLLM(LLM):
    """last: (known, reused) tokens of the last prompt; seconds: to each first
    token."""

    def __init__(self, path: Path, device: str) -> None:
        super().__init__(
            str(path), device=device, dtype="float32", num_page_override=4096
        )
        self.last, self.seconds = (0, 0), list[float]()
        forward = self.engine.forward_batch

        def noted(batch: Batch, *args: Any) -> Any:
            begin, req = perf_counter(), batch.reqs[0]
            if batch.is_prefill:
                handle = req.cache_handle
                hybrid = isinstance(handle, HybridHandle)
                known = handle.known_len if hybrid else req.cached_len
                self.last = known, req.cached_len
            output = forward(batch, *args)
            if batch.is_prefill:
                output.copy_done_event.synchronize()
                self.seconds.append(perf_counter() - begin)
            return output

        self.engine.forward_batch = noted  # type: ignore[method-assign]

    def ask(self, ids: list[int], tokens: int) -> list[int]:
        """Greedy tokens of a single prompt."""
        params = SamplingParams(max_tokens=tokens, ignore_eos=True)
        (answer,) = self.generate([ids], params, progress=False)
        found: list[int] = answer["token_ids"]
        return found


def memory(llm: LLM) -> Iterator[str]:
    """What a request keeps, of either kind."""
    backend, kv = llm.engine.attn_backend, llm.engine.ctx.kv_cache
    assert isinstance(backend, StatefulBackend)
    states = backend.linear.states
    slot = states.nbytes // states.conv.shape[1]
    token = 2 * kv.num_layers * kv.k_cache(0)[0, 0].nbytes
    layers = len(states.conv)
    yield f"{layers} layers with a state, {kv.num_layers} with keys and values"
    yield f"a state: {slot / 1024:.0f} KiB, however long the text is"
    yield f"keys and values: {token / 1024:.0f} KiB a token"
    yield f"as much as a state: {slot / token:.0f} tokens"


@contextmanager
def plain_cache() -> Iterator[None]:
    """Inside, the prefix cache does not know that there are states."""
    yield from _replaced(stateful, "current_states", lambda: None)


@contextmanager
def dirty_rows() -> Iterator[None]:
    """Inside, a new request goes on from whatever its row holds."""

    def source(req: Any, states: StatePool) -> int:
        row: int = req.table_idx
        return row if req.cached_len == 0 else right(req, states)

    right = segments._source
    yield from _replaced(segments, "_source", source)


def _replaced(module: Any, name: str, other: Any) -> Iterator[None]:
    right = getattr(module, name)
    setattr(module, name, other)
    try:
        yield
    finally:
        setattr(module, name, right)
