"""A small model that guesses for a large one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from minisgl.core import Batch, Req, SamplingParams
from minisgl.engine import (
    FAILED_TOKEN,
    Engine,
    EngineConfig,
    ForwardOutput,
)
from minisgl.engine.rejection import Limits
from minisgl.engine.sample import LogitsEdit
from minisgl.scheduler.cache import CacheManager
from minisgl.scheduler.config import SchedulerConfig
from minisgl.scheduler.drafts import BaseDrafter, Draft
from minisgl.scheduler.inputs import make_inputs
from minisgl.scheduler.table import TableManager
from minisgl.scheduler.verify import count_right, trim
from minisgl.utils import align_ceil
from minisgl.utils.device import to_device, use_stream, wait_for_current

POOL_TOKENS = 65536
"""Tokens that the pool of a draft model holds, if no number of pages is given."""


@dataclass
class _Follower:
    """A request in the tables of the draft model.

    req: its counters there.
    drawn: how its drafts are drawn, if that is how they are judged.
    certain: its tokens that have been computed, once the step is over.
    wanted: drafts to make in this step.
    drafts: what was guessed after the certain ones; all but the last of these
        have been computed.
    probs: the distribution of each, float32 [vocab], if they are drawn.
    """

    req: Req
    drawn: SamplingParams | None
    certain: int = 0
    wanted: int = 0
    drafts: list[int] = field(default_factory=list)
    probs: list[torch.Tensor] = field(default_factory=list)

    def draft(self) -> Draft:
        """What was guessed, up to where the draft model failed."""
        if FAILED_TOKEN in self.drafts:
            del self.drafts[self.drafts.index(FAILED_TOKEN) :]
        count = len(self.drafts)
        if self.drawn is None or count == 0:
            return Draft(self.drafts)
        return Draft(self.drafts, torch.stack(self.probs[:count]))


class ModelDrafter(BaseDrafter):
    """A second engine, with a pool and tables of its own, on the same device.

    Of each request it computes what it has not seen, at first all of the
    prompt, and goes on from there. A request for which its pool has no room is
    not guessed for.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.engine = Engine(draft_config(config))
        self._budget = config.max_extend_tokens
        self.reset()

    def reset(self) -> None:
        engine = self.engine
        engine.stream.synchronize()
        table, page_size = engine.page_table, engine.ctx.page_size
        self.rows = TableManager(len(table) - 1, table)
        self.pages = CacheManager(engine.num_pages, page_size, table, "naive")
        self._followers: dict[Req, _Follower] = {}

    def forget(self, req: Req) -> None:
        follower = self._followers.pop(req, None)
        if follower is not None:
            self.pages.drop_req(follower.req)
            self.rows.free(follower.req.table_idx)

    def check_integrity(self) -> None:
        self.pages.check_integrity()

    def propose(
        self, reqs: Sequence[Req], limits: Sequence[int]
    ) -> list[Draft]:
        followers, budget = [], self._budget
        for req, limit in zip(reqs, limits, strict=True):
            limit = min(limit, self.engine.max_seq_len - req.device_len)
            follower = self._follow(req) if limit > 0 else None
            followers.append(follower)
            if follower is not None:
                budget -= self._catch_up(follower, req, limit, budget)
        live = [f for f in followers if f is not None and f.req.extend_len > 0]
        steps = []
        while live:
            steps.append((live, self._run(live)))
            live = [f for f in live if f.wanted > len(steps)]
        for live, output in steps:
            output.copy_done_event.synchronize()
            tokens = output.next_tokens_cpu.tolist()
            for follower, token in zip(live, tokens, strict=True):
                follower.drafts += [token] if follower.wanted else []
        return [f.draft() if f is not None else Draft([]) for f in followers]

    def _follow(self, req: Req) -> _Follower | None:
        """The follower of a request; None if there is no room for one."""
        if req in self._followers:
            return self._followers[req]
        length = min(req.max_device_len, self.engine.max_seq_len)
        promised = sum(self._room(f.req) for f in self._followers.values())
        handle = self.pages.prefix_cache.match_prefix(req.input_ids).cuda_handle
        params = req.sampling_params
        drawn = not params.is_greedy and params.seed is None
        mine = Req(
            input_ids=req.input_ids,
            table_idx=-1,
            cached_len=0,
            output_len=length - req.device_len,
            uid=req.uid,
            sampling_params=_own_params(params, drawn),
            cache_handle=handle,
        )
        room = self.pages.num_pages * self.pages.page_size - promised
        if self.rows.available_size == 0 or self._room(mine) > room:
            return None
        mine.table_idx = self.rows.allocate()
        mine.device_len = 0
        follower = _Follower(mine, params if drawn else None)
        self._followers[req] = follower
        return follower

    def _room(self, mine: Req) -> int:
        """Tokens of whole pages that it may come to need."""
        return align_ceil(mine.max_device_len, self.pages.page_size)

    def _catch_up(
        self, follower: _Follower, req: Req, limit: int, budget: int
    ) -> int:
        """Take in what the request has gained; return how much to compute.

        Drafts that were right have been computed already. If the budget does
        not suffice for the others, the rest is left to later steps.
        """
        mine, row = follower.req, self.rows.token_pool[follower.req.table_idx]
        known = req.input_ids[follower.certain :]
        guessed = follower.drafts[:-1]
        right = count_right(guessed, known[: len(guessed)].tolist())
        held, mine.cached_len = mine.cached_len, follower.certain + right
        trim(self.pages, mine, held)
        count = min(req.device_len - mine.cached_len, budget)
        mine.device_len = mine.cached_len + count
        new = req.input_ids[mine.cached_len : mine.device_len]
        row[mine.cached_len : mine.device_len] = to_device(
            new, row.dtype, row.device
        )
        follower.certain = mine.device_len
        follower.wanted = limit if mine.device_len == req.device_len else 0
        follower.drafts, follower.probs = [], []
        return count

    def _run(self, live: list[_Follower]) -> ForwardOutput:
        """One step of the draft model; its tokens are the next step's input."""
        engine, pool = self.engine, self.rows.token_pool
        reqs = [follower.req for follower in live]
        one_each = all(req.extend_len == 1 for req in reqs)
        batch = Batch(reqs, "decode" if one_each else "prefill")
        self.pages.allocate_paged(reqs)
        engine.graph_runner.pad_batch(batch)
        come, go = make_inputs(batch, engine.page_table)
        engine.attn_backend.prepare_metadata(batch)
        args = engine.sampler.prepare(batch)
        args.edits += self._note_probs(live)
        wait_for_current(engine.stream)
        with use_stream(engine.stream):
            batch.input_ids = pool[come]
            output = engine.forward_batch(batch, args)
            pool[go] = output.next_tokens_gpu
            output.copy_done_event.record()
        return output

    def _note_probs(self, live: list[_Follower]) -> list[LogitsEdit]:
        """Turns logits of drafts to be judged into what they are drawn from."""
        rows = [i for i, f in enumerate(live) if f.drawn is not None]
        if not rows:
            return []
        size, device = self.engine.sampler.vocab_size, self.engine.device
        params = [f.drawn for f in live if f.drawn is not None]
        limits = Limits.of(params, size, device)
        where = to_device(rows, torch.int64, device)

        def edit(logits: torch.Tensor) -> torch.Tensor:
            probs = limits.distribution(logits[where])
            for row, found in zip(rows, probs, strict=True):
                live[row].probs.append(found)
            logits[where] = probs.log()
            return logits

        return [edit]


def _own_params(params: SamplingParams, drawn: bool) -> SamplingParams:
    """How the draft model chooses; penalties and bias it leaves to the other.

    drawn: from logits that are the logarithms of a distribution already.
    """
    if drawn:
        return SamplingParams(temperature=1.0)
    # With a seed both models turn the same number into a token of theirs.
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
    )


def draft_config(config: SchedulerConfig) -> EngineConfig:
    """The settings of the draft model's engine.

    It runs as the model does. What the model keeps for later requests it does
    without.
    """
    assert config.speculative_draft_model is not None
    tokens = min(POOL_TOKENS, config.max_running_req * config.max_seq_len)
    pages = align_ceil(tokens, config.page_size) // config.page_size
    return EngineConfig(
        model_path=config.speculative_draft_model,
        tp_info=config.tp_info,
        dtype=config.dtype,
        max_running_req=config.max_running_req,
        attention_backend=config.attention_backend,
        moe_backend=config.moe_backend,
        cuda_graph_bs=config.cuda_graph_bs,
        cuda_graph_max_bs=config.cuda_graph_max_bs,
        page_size=config.page_size,
        use_dummy_weight=config.use_dummy_weight,
        max_seq_len_override=config.max_seq_len,
        num_page_override=config.num_page_override or pages,
        device=config.device,
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
    )
