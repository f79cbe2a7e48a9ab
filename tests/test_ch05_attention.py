"""Attention backends: mixed batches over pages equal every request alone."""

from itertools import groupby

import pytest
import torch

from minisgl.attention import (
    SUPPORTED_ATTENTION_BACKENDS,
    BaseAttnBackend,
    create_attention_backend,
    validate_attn_backend,
)
from minisgl.attention.torch_backend import TorchBackend
from minisgl.core import Context, set_global_ctx
from minisgl.kvcache import MHAKVCache
from minisgl.layers import ParallelLMHead
from minisgl.utils import Registry
from tests.handmade import make_batch, make_req
from tests.paged import CPU, Paged, answer
from tests.parity import assert_parity, model_under_test, prompts, reference
from tools.models import model_path

FOLDER = model_under_test("qwen3-tiny")
PAGE_SIZES = [1, 4, 16]


class Shape:
    """The part of a ModelConfig that the backend asks for."""

    def __init__(self, heads, kv_heads):
        self.num_qo_heads, self.num_kv_heads = heads, kv_heads


class Attention:
    """One layer's attention with random numbers, no model around it.

    `spans` are the (cached, all) tokens of each request. Their rows of the page
    table hold shuffled pages. Slots that nobody wrote hold `garbage`. The request
    `sick` has NaN for keys and values and owns slot 0.
    """

    dim, length = 8, 48

    def __init__(
        self, spans, heads=4, kv_heads=2, page_size=4, garbage=1e4, sick=None
    ):
        rng = torch.Generator().manual_seed(page_size)
        self.heads, self.kv_heads = heads, kv_heads
        row_pages = self.length // page_size
        pages = len(spans) * row_pages
        self.pool = MHAKVCache(
            kv_heads, 2, self.dim, pages, page_size, torch.float32, CPU
        )
        for layer in (0, 1):
            self.pool.k_cache(layer).fill_(garbage)
            self.pool.v_cache(layer).fill_(garbage)
        order = torch.randperm(pages, generator=rng)
        if sick is not None:
            order[order == 0], order[sick * row_pages] = (
                order[sick * row_pages],
                0,
            )
        slots = order.unsqueeze(1) * page_size + torch.arange(page_size)
        self.table = slots.int().view(len(spans), self.length)
        self.ctx = Context(page_size)
        self.ctx.kv_cache, self.ctx.page_table = self.pool, self.table
        set_global_ctx(self.ctx)
        self.backend = create_attention_backend("torch", Shape(heads, kv_heads))
        self.reqs, self.q, self.kv = [], [], []
        for row, (cached, total) in enumerate(spans):
            req = make_req([7] * total, row, 1)
            req.cached_len = cached
            q = torch.randn(total - cached, heads, self.dim, generator=rng)
            kv = torch.randn(2, total, kv_heads, self.dim, generator=rng)
            if row == sick:
                kv.fill_(torch.nan)
            old_k, old_v = kv[:, :cached].flatten(2)
            self.pool.store_kv(old_k, old_v, self.table[row, :cached], 1)
            self.reqs.append(req)
            self.q.append(q)
            self.kv.append(kv)

    def prepare(self):
        """The batch of all requests, in their order."""
        batch = make_batch(self.reqs, "prefill", self.ctx)
        self.backend.prepare_metadata(batch)
        return batch

    def run(self):
        """Layer 1's output, split by request."""
        batch = self.prepare()
        pairs = list(zip(self.reqs, self.kv, strict=True))
        k = torch.cat([k[req.cached_len :] for req, (k, _) in pairs])
        v = torch.cat([v[req.cached_len :] for req, (_, v) in pairs])
        out = self.backend.forward(torch.cat(self.q), k, v, 1, batch)
        return out.split([req.extend_len for req in self.reqs])

    def expected(self, i):
        """Softmax of the scores of request i, written out, in float64."""
        q, (k, v) = self.q[i].double(), self.kv[i]
        group = self.heads // self.kv_heads
        k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
        rows = []
        for j, query in enumerate(q):
            end = self.reqs[i].cached_len + j + 1
            scores = (query * k[:end]).sum(-1) / self.dim**0.5
            share = scores.softmax(0).unsqueeze(-1)
            rows.append((share * v[:end]).sum(0))
        return torch.stack(rows).float()


MIXED = [(0, 13), (9, 10), (30, 31), (5, 12), (0, 1), (17, 24), (2, 3)]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_a_mixed_batch_is_softmax_request_by_request(page_size):
    attention = Attention(MIXED, page_size=page_size)
    for i, out in enumerate(attention.run()):
        torch.testing.assert_close(out, attention.expected(i))


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(4, 4), (8, 2), (6, 3), (4, 1)]
)
def test_query_heads_share_their_groups_kv_head(heads, kv_heads):
    attention = Attention(MIXED, heads=heads, kv_heads=kv_heads)
    for i, out in enumerate(attention.run()):
        torch.testing.assert_close(out, attention.expected(i))


@pytest.mark.parametrize("new", [1, 2, 3, 8])
def test_two_requests_of_a_group_whatever_is_new_and_cached(new):
    attention = Attention([(5, 5 + new), (0, new), (20, 20 + new)])
    assert len(attention.prepare().attn_metadata.groups) == 1
    for i, out in enumerate(attention.run()):
        torch.testing.assert_close(out, attention.expected(i))


def test_what_is_not_a_requests_own_is_not_read():
    clean = Attention(MIXED, garbage=0.0).run()
    for garbage in (1e4, float("inf"), float("nan")):
        dirty = Attention(MIXED, garbage=garbage).run()
        for mine, theirs in zip(dirty, clean, strict=True):
            assert torch.equal(mine, theirs)


def test_entries_past_the_end_of_a_row_may_be_anything():
    clean = Attention(MIXED).run()
    stale = Attention(MIXED)
    for row, (_, total) in enumerate(MIXED):
        other = stale.table[(row + 1) % len(MIXED), 0].item()
        stale.table[row, total:] = torch.tensor([other, 10**6, -1]).repeat(16)[
            : 48 - total
        ]
    for mine, theirs in zip(stale.run(), clean, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("row", range(len(MIXED)))
def test_c14_nan_keys_of_one_request_stay_its_own(row):
    sick = Attention(MIXED, sick=row)
    for i, out in enumerate(sick.run()):
        if i == row:
            assert out.isnan().all()
        else:
            torch.testing.assert_close(out, sick.expected(i))


# What is prepared once a step.


def test_neighbours_with_equally_many_new_tokens_are_one_group():
    attention = Attention(MIXED)
    groups = attention.prepare().attn_metadata.groups
    rows = [(group.rows.start, group.rows.stop) for group in groups]
    assert rows == [(0, 13), (13, 15), (15, 22), (22, 23), (23, 30), (30, 31)]
    sizes = [tuple(group.slots.shape) for group in groups]
    assert sizes == [(1, 13), (2, 31), (1, 12), (1, 1), (1, 24), (1, 3)]
    for group in groups:
        n = (group.rows.stop - group.rows.start) // len(group.slots)
        heads = attention.heads // attention.kv_heads
        b, m = group.slots.shape
        assert group.seen.shape == (b, 1, heads * n, m)


def test_padding_points_at_the_requests_own_first_slot():
    attention = Attention([(9, 10), (30, 31)])
    (group,) = attention.prepare().attn_metadata.groups
    short, long = attention.table[:, :31]
    assert torch.equal(group.slots[1], long)
    assert torch.equal(group.slots[0, :10], short[:10])
    assert group.slots[0, 10:].eq(short[0]).all()
    assert group.seen[:, 0, 0].sum(1).tolist() == [10, 31]


def test_a_new_token_sees_what_is_cached_itself_and_none_after_it():
    attention = Attention([(2, 5)])
    (group,) = attention.prepare().attn_metadata.groups
    seen = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    heads = attention.heads // attention.kv_heads
    assert group.seen[0, 0].int().tolist() == seen * heads


def test_last_indices_are_the_last_rows_of_the_requests():
    metadata = Attention(MIXED).prepare().attn_metadata
    last = [12, 13, 14, 21, 22, 29, 30]
    assert metadata.get_last_indices(len(last)).tolist() == last
    assert metadata.get_last_indices(3).tolist() == last[:3]


def test_the_head_computes_logits_of_last_tokens_only():
    attention = Attention(MIXED)
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(31, 16, generator=rng)
    head = ParallelLMHead(20, 16)
    head.weight = torch.randn(20, 16, generator=rng)
    with attention.ctx.forward_batch(attention.prepare()):
        logits = head.forward(x)
    last = [12, 13, 14, 21, 22, 29, 30]
    torch.testing.assert_close(logits, x[last] @ head.weight.T)


def test_a_backend_keeps_to_its_own_context():
    expected = Attention(MIXED).run()
    attention = Attention(MIXED)
    set_global_ctx(Context(page_size=1))
    for mine, theirs in zip(attention.run(), expected, strict=True):
        assert torch.equal(mine, theirs)


def test_new_keys_land_in_the_pool_and_only_in_their_layer():
    attention = Attention([(9, 12)])
    attention.run()
    slots = attention.table[0, :12]
    for cache, kv in zip(
        (attention.pool.k_cache, attention.pool.v_cache),
        attention.kv[0],
        strict=True,
    ):
        assert torch.equal(cache(1).flatten(0, 1)[slots], kv)
        assert cache(0).eq(1e4).all()
        assert cache(1).eq(1e4).all(-1).all(-1).sum() == 48 - 12


# Names.


def test_the_torch_backend_is_known_by_name():
    attention = Attention([(0, 1)])
    for name in ("torch", "auto"):
        made = create_attention_backend(name, Shape(4, 2))
        assert isinstance(made, BaseAttnBackend)
    assert isinstance(attention.backend, TorchBackend)
    assert validate_attn_backend("torch") == "torch"
    assert validate_attn_backend("auto") == "auto"
    assert "torch" in SUPPORTED_ATTENTION_BACKENDS.supported_names()


@pytest.mark.parametrize(
    "refuse", [validate_attn_backend, SUPPORTED_ATTENTION_BACKENDS.__getitem__]
)
def test_an_unknown_backend_is_refused_with_the_known_ones(refuse):
    with pytest.raises(
        ValueError,
        match=r"^attention backend 'abacus' is not supported; use one of .*torch",
    ):
        refuse("abacus")


def test_auto_may_be_ruled_out():
    with pytest.raises(ValueError, match="'auto' is not supported"):
        validate_attn_backend("auto", allow_auto=False)


def test_a_registry_keeps_the_order_and_refuses_a_name_twice():
    registry = Registry[int]("number")
    assert registry.register("two")(2) == 2
    registry.register("one")(1)
    assert registry.supported_names() == ["two", "one"]
    assert registry["one"] == 1
    registry.assert_supported(["one", "two"])
    with pytest.raises(AssertionError, match=r"number 'one' exists"):
        registry.register("one")(3)
    assert registry["one"] == 1
    with pytest.raises(
        ValueError, match=r"number 'six' .* use one of two, one$"
    ):
        registry.assert_supported(["one", "six"])


# With a model: a request in a mixed batch against the same request alone.


def serve_mixed(paged, asked, tokens):
    """A prompt joins in every second step, in one batch with all that decode."""
    waiting = [make_req(ids, row, tokens) for row, ids in enumerate(asked)]
    found = {req: [] for req in waiting}
    running, step = [], 0
    while waiting or running:
        if waiting and step % 2 == 0:
            # At either end of the batch: rows of a group must not depend on it.
            running.insert(0 if step % 4 else len(running), waiting.pop(0))
        for req, logits in zip(
            running, paged.step(running, "prefill"), strict=True
        ):
            found[req].append(logits)
        running = [req for req in running if req.can_decode]
        step += 1
    return {req: torch.stack(logits) for req, logits in found.items()}


@pytest.mark.parity
@pytest.mark.parametrize("shuffle", [None, 0], ids=["in-order", "shuffled"])
@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_prefill_and_decode_in_one_batch(page_size, shuffle):
    asked, tokens = prompts(FOLDER)[2:6], 64
    paged = Paged(FOLDER, page_size, 2048 // page_size, shuffle=shuffle)
    found = serve_mixed(paged, asked, tokens)
    for req, ids in zip(found, asked, strict=True):
        assert_parity(answer(req), reference(FOLDER, ids, tokens))
        alone = Paged(FOLDER, page_size).alone(ids, 0, tokens)
        torch.testing.assert_close(found[req], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parity
@pytest.mark.parametrize("model", ["qwen2-tiny", "llama3-tiny", "mistral-tiny"])
def test_mixed_batches_of_the_other_families(model):
    folder, asked = model_path(model), prompts(model)[1:5]
    found = serve_mixed(Paged(folder, 4), asked, 32)
    for req, ids in zip(found, asked, strict=True):
        assert_parity(answer(req), reference(folder, ids, 32))


@pytest.mark.parity
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_c15_the_answer_does_not_depend_on_the_batch(size):
    asked, tokens = prompts(FOLDER)[:size], 64
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    reqs = [make_req(asked[i], row, tokens) for row, i in enumerate(order)]
    paged = Paged(FOLDER, 4, 512)
    paged.step(reqs, "prefill")
    for _ in range(tokens - 1):
        paged.step(reqs)
    for req, i in zip(reqs, order, strict=True):
        assert_parity(answer(req), reference(FOLDER, asked[i], tokens))


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_a_prompt_in_pieces_between_the_tokens_of_another(page_size):
    ids, other = prompts(FOLDER)[5], prompts(FOLDER)[2]
    whole = Paged(FOLDER, page_size).alone(ids, 0, 1)[0]
    steady = Paged(FOLDER, page_size).alone(other, 0, 5)
    paged = Paged(FOLDER, page_size)
    running, cached = make_req(other, 1, 5), 0
    found = [paged.step([running], "prefill")[0]]
    for end in (5, 6, 16, len(ids)):
        piece = make_req(ids[:end], 0, 1)
        piece.cached_len, cached = cached, end
        last, token = paged.step([piece, running], "prefill")
        found.append(token)
    torch.testing.assert_close(last, whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(torch.stack(found), steady, rtol=1e-4, atol=1e-4)


def test_a_long_request_does_not_pad_short_ones():
    """Alike below 512 tokens, then within a factor of 4; the same new tokens."""
    from minisgl.attention.torch_backend import _shape

    lengths = [1, 100, 511, 512, 2047, 2048, 8191, 8192]
    reqs = [make_req([0] * length, 0, 1) for length in lengths]
    for req in reqs:
        req.cached_len = req.device_len - 1
    groups = [[*g] for _, g in groupby(reqs, _shape)]
    sizes = [[req.device_len for req in group] for group in groups]
    assert sizes == [[1, 100, 511], [512, 2047], [2048, 8191], [8192]]
    assert _shape(make_req([0] * 9, 0, 1)) != _shape(reqs[1])
