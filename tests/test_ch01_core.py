"""Requests, batches and the context, alone and around step 0's forward."""

import functools
import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from runpy import run_path

import pytest
import torch

from minisgl import core
from minisgl.core import Batch, Req, SamplingParams, get_global_ctx
from tests.handmade import finish_step, make_batch, make_ctx, make_req
from tests.parity import assert_parity, model_under_test, prompts, reference

STAGES = Path(__file__).parents[1] / "stages"
Engine = run_path(str(STAGES / "ch00-step0" / "engine.py"))["Engine"]


# A request and its counters


@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (1, 5), (7, 1), (6, 4)])
def test_a_request_generates_exactly_output_len_tokens(prompt, output):
    req = make_req([9] * prompt, row=0, max_tokens=output)
    assert (req.device_len, req.max_device_len) == (prompt, prompt + output)
    computed = []
    while req.can_decode:
        assert req.cached_len < req.device_len < req.max_device_len
        assert req.remain_len == output - len(computed)
        computed.append(req.extend_len)
        finish_step(Batch([req], "prefill"), [40 + len(computed)])
    assert computed == [prompt] + [1] * (output - 1)
    assert req.input_ids.tolist() == [9] * prompt + list(range(41, 41 + output))
    assert req.input_ids.dtype == torch.int32
    # The last token was never run, so the cache lacks it.
    assert (req.cached_len, req.device_len) == (
        prompt + output - 1,
        req.max_device_len,
    )
    assert req.remain_len == 0


def test_a_cached_prefix_is_not_computed_again():
    req = make_req(range(10), row=0, max_tokens=2)
    req.cached_len = 7
    assert (req.extend_len, req.remain_len) == (3, 2)
    req.complete_one()
    assert (req.extend_len, req.cached_len, req.remain_len) == (1, 10, 1)


def test_counters_may_be_ahead_of_the_tokens_that_the_host_has_read():
    req = make_req([1, 2, 3], row=0, max_tokens=4)
    req.complete_one()
    assert (req.device_len, len(req.input_ids)) == (4, 3)
    assert (req.extend_len, req.remain_len) == (1, 3)
    req.append_host(torch.tensor([8], dtype=torch.int32))
    assert (req.device_len, req.input_ids.tolist()) == (4, [1, 2, 3, 8])


def test_appending_leaves_the_callers_prompt_alone():
    prompt = torch.tensor([5, 6], dtype=torch.int32)
    req = make_req([0], row=0, max_tokens=1)
    req.input_ids = prompt
    req.append_host(torch.tensor([7], dtype=torch.int32))
    assert prompt.tolist() == [5, 6]


def make_odd(length=4, cached=0, output=2, device="cpu"):
    """A request as the arguments say, whatever fields it has beyond them."""
    req = make_req([0], row=0, max_tokens=1)
    given = {field.name: getattr(req, field.name) for field in fields(req)}
    ids = torch.zeros(length, dtype=torch.int32, device=device)
    given |= {"input_ids": ids, "cached_len": cached, "output_len": output}
    return Req(**given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"length": 0},
        {"cached": -1},
        {"cached": 4},  # nothing to compute: not even logits would come out
        {"cached": 5},
        {"output": -1},
    ],
)
def test_counters_out_of_order_are_refused(wrong):
    with pytest.raises(AssertionError):
        make_odd(**wrong)


def test_counters_at_the_edges_are_accepted():
    assert make_odd(cached=3).extend_len == 1
    assert not make_odd(output=0).can_decode
    assert make_odd(length=1, output=1).can_decode


def test_token_ids_live_on_the_host():
    with pytest.raises(AssertionError, match="live on the host"):
        make_odd(device="meta")


def test_a_request_is_equal_only_to_itself():
    twins = [make_req([1, 2], row=3, max_tokens=4) for _ in range(2)]
    assert twins[0] != twins[1]
    assert len({*twins, twins[0]}) == 2


def test_a_request_prints_its_counters():
    req = make_req([1, 2], row=3, max_tokens=4)
    finish_step(Batch([req], "prefill"), [7])
    assert repr(req) == "Req(uid=3, row=3, cached=2, device=3, max=6)"


# A batch


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_batch_is_of_one_phase(phase):
    batch = Batch([make_req([1], 0, 1), make_req([1, 2], 1, 1)], phase)
    assert (batch.is_prefill, batch.is_decode) == (
        phase == "prefill",
        phase == "decode",
    )
    assert batch.size == 2
    assert not hasattr(batch, "input_ids"), "filled in by who makes the batch"


def test_a_batch_is_flat_and_has_no_padding():
    short, long = make_req([1], 0, 4), make_req([2, 3, 4, 5], 1, 4)
    long.cached_len = 1
    batch = make_batch([short, long], "prefill", None)
    assert batch.input_ids.tolist() == [1, 3, 4, 5]
    assert batch.positions.tolist() == [0, 1, 2, 3]
    finish_step(batch, [8, 9])
    batch = make_batch([long, short], "decode", None)
    assert batch.input_ids.tolist() == [9, 8]
    assert batch.positions.tolist() == [4, 1]


# The context


@pytest.fixture
def no_context(monkeypatch):
    monkeypatch.setattr(core, "_GLOBAL_CTX", None)


def test_no_context_before_one_is_set(no_context):
    with pytest.raises(AssertionError, match="set_global_ctx"):
        get_global_ctx()
    ctx = make_ctx()
    core.set_global_ctx(ctx)
    assert get_global_ctx() is ctx


def test_the_batch_is_there_only_while_it_runs(no_context):
    ctx, batch = make_ctx(), Batch([make_req([1], 0, 1)], "decode")
    for _ in range(2):
        with pytest.raises(AssertionError, match="no batch is running"):
            _ = ctx.batch
        with ctx.forward_batch(batch):
            assert get_global_ctx().batch is batch


def test_a_step_that_fails_leaves_the_context_usable(no_context):
    ctx, batch = make_ctx(), Batch([make_req([1], 0, 1)], "decode")
    with (
        pytest.raises(MemoryError, match="too much"),
        ctx.forward_batch(batch),
    ):
        raise MemoryError("too much")
    with ctx.forward_batch(batch):
        assert ctx.batch is batch


def test_batches_do_not_nest_and_the_outer_one_stays(no_context):
    ctx, batch = make_ctx(), Batch([make_req([1], 0, 1)], "decode")
    with ctx.forward_batch(batch):
        with (
            pytest.raises(AssertionError, match="do not nest"),
            ctx.forward_batch(batch),
        ):
            pass
        assert ctx.batch is batch


def test_engines_of_one_process_take_turns(no_context):
    one, other = make_ctx(), make_ctx()
    batches = [Batch([make_req([1], 0, 1)], "decode") for _ in range(4)]
    for ctx, batch in zip([one, other, one, other], batches, strict=True):
        with ctx.forward_batch(batch):
            assert get_global_ctx() is ctx
            assert get_global_ctx().batch is batch


# Sampling parameters


def test_the_default_is_greedy_with_everything_else_off():
    params = SamplingParams()
    assert params.is_greedy
    assert (params.top_k, params.top_p, params.min_p) == (-1, 1.0, 0.0)
    assert (params.max_tokens, params.ignore_eos) == (1024, False)
    assert params.seed is None


@pytest.mark.parametrize(
    ("fields", "greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0.0, "top_k": 40, "top_p": 0.5}, True),
        ({"temperature": 1e-6}, False),
        ({"temperature": 1.0}, False),
        ({"temperature": 1.0, "top_k": 1}, True),
        ({"temperature": 1.0, "top_k": 2}, False),
        ({"temperature": 1.0, "top_k": 0}, False),
        ({"temperature": 1.0, "top_k": -1}, False),
    ],
)
def test_c12_temperature_0_and_top_k_1_are_greedy(fields, greedy):
    assert SamplingParams(**fields).is_greedy is greedy


INTEGER = "an integer"
FINITE = "a finite number"
BAD = [
    ("temperature", -1, "at least 0"),
    ("temperature", -1e-9, "at least 0"),
    ("temperature", math.nan, FINITE),
    ("temperature", math.inf, FINITE),
    ("temperature", "1", FINITE),
    ("temperature", None, FINITE),
    ("temperature", True, FINITE),
    ("top_k", -2, "at least -1"),
    ("top_k", 0.5, INTEGER),
    ("top_k", 5.0, INTEGER),
    ("top_k", "5", INTEGER),
    ("top_k", True, INTEGER),
    ("top_p", 0, "greater than 0 and at most 1"),
    ("top_p", 1.5, "greater than 0 and at most 1"),
    ("top_p", -0.1, "greater than 0 and at most 1"),
    ("top_p", math.nan, FINITE),
    ("min_p", -0.1, "at least 0 and at most 1"),
    ("min_p", 1.1, "at least 0 and at most 1"),
    ("min_p", [0.1], FINITE),
    ("max_tokens", 0, "at least 1"),
    ("max_tokens", -1, "at least 1"),
    ("max_tokens", 2.5, INTEGER),
    ("max_tokens", "5", INTEGER),
    ("max_tokens", True, INTEGER),
    ("seed", 1.5, INTEGER),
    ("seed", "7", INTEGER),
    ("seed", 2**63, f"at most {2**63 - 1}"),
    ("seed", -(2**63) - 1, f"at least {-(2**63)}"),
]


@pytest.mark.parametrize(("field", "value", "rule"), BAD)
def test_c12_a_bad_value_is_refused_by_name(field, value, rule):
    with pytest.raises(ValueError, match=rf"^{field} must be .*{rule}") as info:
        SamplingParams(**{field: value})
    message = str(info.value)
    assert message.endswith(f", got {value!r}")
    assert "\n" not in message


def test_a_range_without_an_upper_end_names_none():
    with pytest.raises(
        ValueError, match=r"^max_tokens must be at least 1, got"
    ):
        SamplingParams(max_tokens=0)
    with pytest.raises(ValueError, match=r"^temperature .* at least 0, got"):
        SamplingParams(temperature=-1.0)


@pytest.mark.parametrize(
    "fields",
    [{"top_k": top_k} for top_k in (-1, 0, 1, 49152, 9999999)]
    + [{"top_p": top_p} for top_p in (1, 1.0, 1e-9)]
    + [{"min_p": min_p} for min_p in (0, 1)]
    + [{"seed": seed} for seed in (0, -(2**63), 2**63 - 1)]
    + [{"max_tokens": 1}, {"temperature": 0}, {"temperature": 100.0}],
)
def test_c12_a_value_at_the_edge_is_accepted_as_it_is(fields):
    params = SamplingParams(**fields)
    assert {name: getattr(params, name) for name in fields} == fields


# Step 0, driven through requests and batches


class Driver:
    """Step 0's forward as the engine of batches; a cache for each request."""

    def __init__(self, folder: Path):
        self.engine = Engine(folder, "cpu", torch.float32)
        self.ctx = make_ctx()
        self.caches: dict[int, dict] = {}

    def step(self, reqs: Sequence[Req], phase: str) -> None:
        batch = make_batch(list(reqs), phase, None)
        with torch.inference_mode(), self.ctx.forward_batch(batch):
            tokens = self._forward()
        finish_step(batch, tokens)

    def _forward(self) -> list[int]:
        batch = get_global_ctx().batch
        lengths = [req.extend_len for req in batch.reqs]
        news = batch.input_ids.split(lengths)
        places = batch.positions.split(lengths)
        found = []
        for req, ids, where in zip(batch.reqs, news, places, strict=True):
            cache = self.caches.setdefault(req.uid, {})
            done = [keys.shape[1] for keys, _ in cache.values()]
            assert set(done) <= {req.cached_len}
            assert where.tolist() == list(range(req.cached_len, req.device_len))
            logits = self.engine.forward(ids.tolist(), cache)
            found.append(int(logits.argmax()))
        return found


@functools.cache
def driver():
    return Driver(model_under_test("qwen3-tiny"))


def answer(req: Req) -> list[int]:
    return req.input_ids[-req.output_len :].tolist()


@pytest.mark.parity
def test_parity_of_requests_that_start_together_and_end_one_by_one():
    folder = model_under_test("qwen3-tiny")
    lengths = [24, 1, 7, 16]
    asked = prompts(folder)[2 : 2 + len(lengths)]
    reqs = [
        make_req(ids, row, limit)
        for row, (ids, limit) in enumerate(zip(asked, lengths, strict=True))
    ]
    driver().caches.clear()
    driver().step(reqs, "prefill")
    while running := [req for req in reqs if req.can_decode]:
        driver().step(running, "decode")
    for req, ids in zip(reqs, asked, strict=True):
        assert_parity(answer(req), reference(folder, ids, req.output_len))


@pytest.mark.parity
def test_parity_of_a_request_that_joins_others_and_of_a_changing_order():
    folder = model_under_test("qwen3-tiny")
    asked = prompts(folder)[:3]
    reqs = [make_req(ids, row, 12) for row, ids in enumerate(asked)]
    driver().caches.clear()
    joined: list[Req] = []
    for req in reqs:
        driver().step([req], "prefill")
        joined.insert(0, req)
        for _ in range(3):
            driver().step(joined, "decode")
    while joined := [req for req in joined if req.can_decode]:
        driver().step(joined, "decode")
    for req, ids in zip(reqs, asked, strict=True):
        assert_parity(answer(req), reference(folder, ids, 12))
