"""Chunks: small enough, all pages once, and together the whole."""

import pytest
import torch

from minisgl.attention.split import (
    Plan,
    SplitBackend,
    chunk_pages,
    make_plan,
    merge_chunks,
)
from tests.handmade import make_req
from tests.paged import Paged, answer
from tests.parity import assert_parity, model_under_test, prompts, reference

FOLDER = model_under_test("qwen3-tiny")
RNG = torch.Generator().manual_seed(0)
SHAPES = [
    ([9, 2, 1], 6),
    ([100, 1, 1, 1, 1, 1, 1, 1], 16),
    ([7], 7),
    ([7], 100),
    ([3, 3, 3], 2),
    ([5, 5, 5, 5], 8),
    ([1], 1),
    ([13, 8, 21, 2, 34], 11),
]


def count(pages, size):
    return sum(-(-n // size) for n in pages)


@pytest.mark.parametrize(("pages", "blocks"), SHAPES)
def test_a_chunk_is_as_small_as_it_may_be(pages, blocks):
    allowed = max(blocks, len(pages))
    size = chunk_pages(pages, blocks)
    assert count(pages, size) <= allowed
    assert size == 1 or count(pages, size - 1) > allowed


def test_random_batches():
    for _ in range(200):
        pages = torch.randint(1, 300, (5,), generator=RNG).tolist()
        blocks = int(torch.randint(1, 90, (1,), generator=RNG))
        allowed = max(blocks, len(pages))
        expected = next(
            size for size in range(1, 300) if count(pages, size) <= allowed
        )
        assert chunk_pages(pages, blocks) == expected


@pytest.mark.parametrize(("pages", "blocks"), SHAPES)
def test_every_page_is_in_one_chunk(pages, blocks):
    plan = make_plan(pages, blocks)
    assert isinstance(plan, Plan)
    assert all(part.dtype == torch.int64 for part in plan)
    chunks = list(zip(*(part.tolist() for part in plan), strict=True))
    found = [(r, p) for r, a, b in chunks for p in range(a, b)]
    assert found == [(r, p) for r, n in enumerate(pages) for p in range(n)]
    size = chunk_pages(pages, blocks)
    for owner, first, last in chunks:
        assert last - first == size or last == pages[owner]
    assert len(chunks) <= max(blocks, len(pages))


def test_one_long_request_is_shared_by_all():
    plan = make_plan([100, *[1] * 7], 16)
    assert (plan.owner == 0).sum() == 9
    assert (plan.last - plan.first).max() == 12


def pieces(scores, values, sizes):
    """out, lse of chunks of these sizes: scores [heads, n], values [n, dim]."""
    out, lse = [], []
    for s, v in zip(scores.split(sizes, 1), values.split(sizes), strict=True):
        out.append(s.softmax(-1) @ v)
        lse.append(s.logsumexp(-1))
    return out, lse


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_chunks_make_the_whole(scale):
    cuts, out, lse, owner, expected = [[4, 4, 1], [3], [2, 2]], [], [], [], []
    for number, sizes in enumerate(cuts):
        scores = scale * torch.randn(4, sum(sizes), generator=RNG)
        values = torch.randn(sum(sizes), 8, generator=RNG)
        some, logs = pieces(scores, values, sizes)
        out, lse = out + some, lse + logs
        owner += [number] * len(sizes)
        expected.append(scores.double().softmax(-1) @ values.double())
    unused = torch.zeros(len(owner), dtype=torch.int64)
    plan = Plan(torch.tensor(owner), unused, unused)
    found = merge_chunks(torch.stack(out), torch.stack(lse), plan)
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found, torch.stack(expected).float(), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parity
@pytest.mark.parametrize("blocks", [1, 16, 1000])
def test_a_model_gives_the_same_tokens(blocks):
    chosen = prompts(FOLDER)[2:8]
    paged = Paged(FOLDER, 4, pages=512)
    paged.ctx.attn_backend = SplitBackend(paged.config, blocks)
    reqs = [make_req(p, row, 12) for row, p in enumerate(chosen)]
    paged.step(reqs, "prefill")
    while reqs[0].can_decode:
        paged.step(reqs)
    for req, prompt in zip(reqs, chosen, strict=True):
        assert_parity(answer(req), reference(FOLDER, prompt, 12))
