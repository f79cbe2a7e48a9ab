"""C30: dummies fill up a batch, and nobody notices but the dummy page."""

import pytest
import torch

from minisgl.core import Batch
from minisgl.scheduler.inputs import make_inputs
from tests.driver import Driver
from tests.fakes.install import stand_ins
from tests.handmade import make_req
from tests.parity import model_under_test, prompts

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
MARK = 3.0
BACKENDS = [("torch", 1), ("torch", 4), ("fi", 1), ("fi", 4), ("fa", 4)]


def drive(name="torch", page_size=4, **settings) -> Driver:
    settings = {"cuda_graph_bs": [4], "max_seq_len_override": 256} | settings
    return Driver(
        FOLDER,
        page_size=page_size,
        pages=settings.pop("pages", 1024 // page_size),
        attention_backend=name,
        **settings,
    )


def start_three(driver: Driver) -> None:
    """Three requests that have their prompts behind them."""
    for uid in (2, 4, 5):
        driver.submit(uid, PROMPTS[uid], max_tokens=8)
    while len(driver.scheduler.decode_manager.running_reqs) < 3:
        driver.step()


def slots_of(pool) -> torch.Tensor:
    """A copy of all that the pool holds: [slots, numbers]."""
    return pool._slots.permute(2, 0, 1, 3, 4).flatten(1).clone()


@pytest.mark.parametrize(("name", "page_size"), BACKENDS)
def test_c30_a_padded_step_writes_its_own_slots_only(name, page_size):
    with stand_ins():
        driver = drive(name, page_size)
        start_three(driver)
        engine = driver.scheduler.engine
        reqs = [*driver.scheduler.decode_manager.running_reqs.values()]
        pool = engine.ctx.kv_cache
        used = torch.cat(
            [engine.page_table[r.table_idx, : r.cached_len] for r in reqs]
        )
        unused = torch.ones(pool._slots.shape[2], dtype=torch.bool)
        unused[used.long()] = False
        pool._slots[:, :, unused] = MARK
        before = slots_of(pool)
        driver.step()
    assert driver.steps[-1].phase == "decode"
    changed = (slots_of(pool) != before).any(1).nonzero().flatten().tolist()
    new = [int(engine.page_table[r.table_idx, r.cached_len - 1]) for r in reqs]
    dummy = engine.num_pages * page_size
    assert sorted(changed) == sorted([*new, dummy])
    driver.run()
    driver.assert_parity(length=8)


def test_c30_the_dummy_page_is_not_in_the_pool():
    driver = drive(pages=40, max_running_req=4)
    engine, scheduler = driver.scheduler.engine, driver.scheduler
    assert engine.num_pages == 40 == scheduler.cache_manager.num_pages
    assert len(engine.ctx.kv_cache.k_cache(0)) == 41
    free = scheduler.cache_manager.free_pages.tolist()
    assert sorted(free) == [*range(40)]
    row = engine.page_table[engine.dummy_req.table_idx]
    assert (row // 4).unique().tolist() == [40]
    rows = [scheduler.table_manager.allocate() for _ in range(4)]
    assert engine.dummy_req.table_idx == 4 not in rows
    for taken in rows:
        scheduler.table_manager.free(taken)
    for uid in range(8):
        driver.submit(uid, PROMPTS[uid % 4], max_tokens=6)
    driver.run()
    driver.assert_parity()
    driver.assert_every_page()


def test_c30_capturing_leaves_the_pool_as_it_was():
    for name, page_size in BACKENDS:
        with stand_ins():
            engine = drive(name, page_size).scheduler.engine
        slots = slots_of(engine.ctx.kv_cache)
        written = (slots != 0).any(1).nonzero().flatten().tolist()
        assert written == [engine.num_pages * page_size]


@pytest.mark.parity
@pytest.mark.parametrize(("name", "page_size"), BACKENDS)
def test_c30_padded_and_unpadded_answers_are_equal(name, page_size):
    answers = []
    for sizes in ([4], [3], []):
        with stand_ins():
            driver = drive(name, page_size, cuda_graph_bs=sizes)
            start_three(driver)
            driver.run()
        driver.assert_parity(length=8)
        answers.append(driver.answers)
    assert answers[0] == answers[1] == answers[2]


def test_c30_tokens_of_padded_rows_are_dropped():
    driver = drive()
    start_three(driver)
    engine, found = driver.scheduler.engine, []
    run = engine.forward_batch

    def noted(batch, args):
        output = run(batch, args)
        found.append((batch, output))
        return output

    engine.forward_batch = noted
    driver.step()
    (batch, output), *_ = found
    assert (batch.size, batch.padded_size) == (3, 4)
    assert len(output.next_tokens_gpu) == len(output.next_tokens_cpu) == 3
    pool = driver.scheduler.table_manager.token_pool
    assert pool[engine.dummy_req.table_idx].eq(0).all()


def test_nan_in_the_dummy_harms_nobody():
    with stand_ins():
        driver = drive("fi")
        start_three(driver)
        engine = driver.scheduler.engine
        engine.ctx.kv_cache._slots[:, :, engine.num_pages * 4 :] = torch.nan
        driver.run()
    driver.assert_parity(length=8)


# The tensors of a padded batch.


def test_inputs_are_padded_and_outputs_are_not():
    table = torch.arange(48, dtype=torch.int32).view(3, 16)
    a, b, dummy = (make_req([7] * n, row, 5) for row, n in enumerate((9, 4, 1)))
    a.cached_len, b.cached_len = 8, 3
    batch = Batch([a, b], "decode")
    assert batch.padded_reqs is batch.reqs and batch.padded_size == 2
    batch.padded_reqs = [a, b, dummy, dummy]
    assert (batch.size, batch.padded_size) == (2, 4)
    (rows, columns), write = make_inputs(batch, table)
    assert rows.tolist() == [0, 1, 2, 2] and columns.tolist() == [8, 3, 0, 0]
    assert batch.positions.tolist() == [8, 3, 0, 0]
    assert batch.out_loc.tolist() == [8, 19, 32, 32]
    assert [x.tolist() for x in write] == [[0, 1], [9, 4]]


@pytest.mark.parametrize(
    ("size", "padded"), [(1, 2), (2, 2), (3, 5), (5, 5), (6, 6)]
)
def test_a_batch_is_filled_up_to_the_next_size(size, padded):
    runner = drive(cuda_graph_bs=[2, 5]).scheduler.engine.graph_runner
    reqs = [make_req([7] * 3, row, 5) for row in range(size)]
    for phase, expected in (("decode", padded), ("prefill", size)):
        batch = Batch(list(reqs), phase)
        runner.pad_batch(batch)
        assert batch.padded_size == expected and batch.size == size
        assert batch.padded_reqs[:size] == reqs
        others = batch.padded_reqs[size:]
        assert all(req is runner.dummy_req for req in others)


def test_ids_of_the_host_grow_and_leave_the_prompt_alone():
    prompt = torch.tensor([4, 5], dtype=torch.int32)
    one, other = (make_req(prompt.tolist(), row, 9) for row in range(2))
    one.input_ids = prompt
    seen = []
    for token in range(7):
        one.append_host(torch.tensor([token], dtype=torch.int32))
        seen.append(one.input_ids)
    assert one.input_ids.tolist() == [4, 5, *range(7)]
    assert [len(ids) for ids in seen] == [*range(3, 10)]
    # What was read before stays what it was.
    assert seen[0].tolist() == [4, 5, 0] and prompt.tolist() == [4, 5]
    assert other.input_ids.tolist() == [4, 5]
    assert one.input_ids.dtype == torch.int32
