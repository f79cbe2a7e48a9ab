"""One batch, run by hand from its prompts until every answer has ended."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch

from minisgl.core import Batch, Req, SamplingParams
from minisgl.distributed import DistributedInfo
from minisgl.engine import FAILED_TOKEN, Engine, EngineConfig
from minisgl.scheduler.cache import CacheManager
from tests.handmade import make_batch, make_req


def make_engine(path: Path, device: str, dtype: str) -> Engine:
    """An engine with room for 64 requests at a time."""
    one = DistributedInfo(0, 1)
    rows = {"max_running_req": 64, "page_size": 16}
    return Engine(EngineConfig(str(path), one, dtype, device=device, **rows))


def make_reqs(
    engine: Engine,
    prompts: Sequence[list[int]],
    ways: Sequence[tuple[int, float, int | None]],
) -> list[Req]:
    """A request a prompt; with its answer it at most fills the context.

    ways: most tokens, temperature and seed of each.

    Raises:
        ValueError: more prompts than rows, or one without room for an answer.
    """
    rows, reqs = len(engine.page_table), []
    if len(prompts) > rows:
        raise ValueError(f"{len(prompts)} prompts; at most {rows} in a batch")
    for row, (ids, way) in enumerate(zip(prompts, ways, strict=True)):
        max_tokens, temperature, seed = way
        params = SamplingParams(temperature, max_tokens=max_tokens, seed=seed)
        room = engine.max_seq_len - len(ids)
        if room < 1:
            raise ValueError(
                f"a prompt of {len(ids)} tokens leaves no room for an answer: "
                f"the context is {engine.max_seq_len}"
            )
        reqs.append(make_req(ids, row, min(max_tokens, room), params))
    return reqs


def prepare(engine: Engine, cache: CacheManager, reqs: list[Req]) -> Batch:
    """Pages for the tokens to compute, then the tensors of the step."""
    cache.allocate_paged(reqs)
    phase = "decode" if reqs[0].cached_len else "prefill"
    batch = make_batch(reqs, phase, engine.ctx)
    engine.attn_backend.prepare_metadata(batch)
    return batch


@torch.inference_mode()
def run(
    engine: Engine, reqs: list[Req], ends: Collection[int]
) -> Iterator[dict[Req, int]]:
    """Step by step, the token of every request that was in the step.

    Who has failed or ended leaves the batch, and nobody takes the place.
    """
    pages = engine.num_pages, engine.ctx.page_size, engine.page_table
    cache = CacheManager(*pages)
    while reqs:
        batch = prepare(engine, cache, reqs)
        output = engine.forward_batch(batch, engine.sampler.prepare(batch))
        output.copy_done_event.synchronize()
        found = zip(reqs, output.next_tokens_cpu, strict=True)
        tokens = {req: int(token) for req, token in found}
        reqs = [req for req in reqs if tokens[req] != FAILED_TOKEN]
        for req in reqs:
            req.append_host(torch.tensor([tokens[req]], dtype=torch.int32))
        yield tokens
        reqs = [r for r in reqs if r.can_decode and tokens[r] not in ends]


def answer(tokenizer: object, req: Req) -> str:
    """The text of what a request has generated so far."""
    start = req.max_device_len - req.output_len
    return tokenizer.decode(req.input_ids[start:], skip_special_tokens=True)
