"""Recorded prefill batches: the same tokens, and nobody notices the dummies."""

import pytest
import torch

from minisgl.attention import fi, fi_prefill
from minisgl.attention.fi_prefill import PrefillWrappers
from minisgl.engine.prefill_graph import REQUESTS, SIZES, PrefillGraphs
from tests.driver import Driver
from tests.fakes.install import stand_ins
from tests.parity import model_under_test, prompts

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
MARK = 3.0


def drive(name="fi", page_size=4, **settings) -> Driver:
    settings = {"cuda_graph_bs": [1, 8], "max_seq_len_override": 256} | settings
    return Driver(
        FOLDER,
        page_size=page_size,
        pages=settings.pop("pages", 4096 // page_size),
        attention_backend=name,
        **settings,
    )


def graphs_of(driver: Driver) -> PrefillGraphs:
    graphs = driver.scheduler.engine.graph_runner.prefill_graphs
    assert graphs is not None
    return graphs


def note_replays(driver: Driver) -> list[tuple[int, int, int]]:
    """(requests, their tokens, tokens padded) of each replay from here on."""
    graphs, seen = graphs_of(driver), []
    replay = graphs.replay

    def noted(batch):
        tokens = sum(req.extend_len for req in batch.reqs)
        seen.append((batch.size, tokens, len(batch.input_ids)))
        return replay(batch)

    graphs.replay = noted
    return seen


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_recorded_prompts_give_the_same_tokens(page_size, overlap):
    """Alone, several at once, found in the cache in part, and in chunks."""
    with stand_ins():
        driver = drive(page_size=page_size, overlap=overlap)
        seen = note_replays(driver)
        for first, last in ((0, 1), (1, 4), (4, 12), (3, 9)):
            for place in range(first, last):
                uid = 100 * first + place
                driver.submit(uid, PROMPTS[place % len(PROMPTS)], max_tokens=6)
            driver.step()
            driver.step()
        driver.run()
    driver.assert_parity()
    driver.assert_clean()
    assert len({size for size, _, _ in seen}) >= 2
    assert all(padded in SIZES for _, _, padded in seen)
    assert all(0 <= padded - tokens <= 64 for _, tokens, padded in seen)


@pytest.mark.parity
def test_chunks_are_recorded_too():
    long = max(PROMPTS, key=len)
    with stand_ins():
        driver = drive(max_extend_tokens=40)
        seen = note_replays(driver)
        driver.submit(1, long, max_tokens=8)
        driver.submit(2, PROMPTS[3], max_tokens=8)
        driver.run()
    driver.assert_parity()
    assert len(seen) == len([*driver.prefills()]) > 2


@pytest.mark.parity
def test_a_prompt_as_long_as_a_recording_needs_no_other_tokens():
    exact = next(ids for ids in PROMPTS if len(ids) == SIZES[0])
    with stand_ins():
        driver = drive()
        seen = note_replays(driver)
        driver.submit(1, exact, max_tokens=8)
        driver.run()
    driver.assert_parity(length=8)
    assert seen == [(1, 64, 64)]


def test_batches_that_are_too_large_are_launched():
    with stand_ins():
        driver = drive(max_extend_tokens=4096)
        seen = note_replays(driver)
        for uid in range(REQUESTS + 1):
            driver.submit(uid, PROMPTS[2], max_tokens=4)
        driver.step()
        assert not seen, "more requests than a recording has"
        driver.run()
        many = [(7 * i + 3 * n) % 300 for n in range(3) for i in range(90)]
        for n in range(3):
            ids = many[90 * n : 90 * n + 90]
            driver.submit(20 + n, ids, max_tokens=4)
        driver.run()
    assert not seen, "more tokens than the longest request, so than any size"
    driver.assert_parity(length=4)


def test_sizes_end_at_the_longest_request():
    with stand_ins():
        for longest, expected in ((256, 4), (100, 1), (63, 0)):
            driver = drive(max_seq_len_override=longest)
            assert len(graphs_of(driver)) == expected


def test_sizes_for_which_no_memory_is_left_are_launched(monkeypatch, caplog):
    capture = PrefillGraphs._capture

    def short(self, size, *args):
        if size > 128:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return capture(self, size, *args)

    monkeypatch.setattr(PrefillGraphs, "_capture", short)
    with stand_ins():
        driver = drive()
        assert [*graphs_of(driver)._runs] == [128, 64]
        assert "prompts of 256 tokens: no memory is left" in caplog.text
        for uid, ids in enumerate((PROMPTS[4], [*range(3, 203)])):
            driver.submit(uid, ids, max_tokens=8)
            driver.run()
    driver.assert_parity(length=8)


def test_plans_of_all_sizes_lie_in_one_place():
    """Each takes MiB of the GPU, and only one of them is read at a time."""
    with stand_ins():
        backend = drive().scheduler.engine.attn_backend
    wrappers = backend._prefill_graphs._wrappers.values()
    decode = backend._graph_wrappers.values()
    places = {w._int_workspace_buffer.data_ptr() for w in (*wrappers, *decode)}
    assert len(wrappers) == 4 and len(places) == 1


@pytest.mark.parametrize(("largest", "rows"), [(1, 1), (3, 3), (20, REQUESTS)])
def test_no_more_requests_than_a_step_has_logits_for(largest, rows):
    with stand_ins():
        driver = drive(cuda_graph_bs=[largest], max_running_req=20)
        seen = note_replays(driver)
        for uid in range(rows):
            driver.submit(uid, PROMPTS[uid % 4], max_tokens=4)
        driver.step()
        assert [size for size, _, _ in seen] == [rows]
        for uid in range(rows, 2 * rows + 1):
            driver.submit(uid, PROMPTS[uid % 4], max_tokens=4)
        driver.run()
        assert len([*driver.prefills()][-1].tokens) == rows + 1
        assert len(seen) == 1, "a request more than fit"
    driver.assert_parity(length=4)


@pytest.mark.parametrize("name", ["torch", "fa", "fa,fi"])
def test_backends_that_do_not_record_prompts_launch_them(name):
    with stand_ins():
        driver = drive(name)
        assert len(graphs_of(driver)) == 0
        driver.submit(1, PROMPTS[4], max_tokens=8)
        driver.run()
    driver.assert_parity(length=8)


def test_without_recordings_prompts_are_launched():
    with stand_ins():
        driver = drive()
        runner = driver.scheduler.engine.graph_runner
        runner.destroy_cuda_graphs()
        assert runner.prefill_graphs is None
        driver.submit(1, PROMPTS[4], max_tokens=8)
        driver.run()
    driver.assert_parity(length=8)


def test_a_padded_prompt_writes_its_own_slots_only():
    with stand_ins():
        driver = drive(overlap=False)
        engine, seen = driver.scheduler.engine, note_replays(driver)
        pool = engine.ctx.kv_cache
        dummy = engine.num_pages * 4
        assert not pool._slots[:, :, :dummy].any(), "written while recording"
        pool._slots.fill_(MARK)
        driver.submit(1, PROMPTS[5], max_tokens=1)
        driver.step()
        driver.run()
    assert seen == [(1, len(PROMPTS[5]), 64)], "dummies for the rest"
    slots = pool._slots.permute(2, 0, 1, 3, 4).flatten(1)
    changed = (slots != MARK).any(1).nonzero().flatten().tolist()
    # The first pages are free, in their order.
    assert changed == [*range(len(PROMPTS[5])), dummy]


def test_nan_in_the_dummy_harms_nobody():
    with stand_ins():
        driver = drive()
        engine, seen = driver.scheduler.engine, note_replays(driver)
        engine.ctx.kv_cache._slots[:, :, engine.num_pages * 4 :] = float("nan")
        for uid in (2, 4, 5):
            driver.submit(uid, PROMPTS[uid], max_tokens=8)
        driver.run()
    driver.assert_parity(length=8)
    assert any(padded > tokens for _, tokens, padded in seen)


def right(driver: Driver) -> bool:
    for uid in (4, 5, 7):
        driver.submit(uid, PROMPTS[uid], max_tokens=16)
    driver.run()
    return driver.has_parity(length=16)


@pytest.mark.parametrize(
    "tensor",
    [
        lambda graphs, backend: graphs._ids,
        lambda graphs, backend: graphs._positions,
        lambda graphs, backend: graphs._out_loc,
        lambda graphs, backend: backend._prefill_graphs.capture.cu_seqlens_q,
        lambda graphs, backend: backend._prefill_graphs.capture.cu_seqlens_k,
        lambda graphs, backend: backend._prefill_graphs.capture.page_table,
        lambda graphs, backend: backend._prefill_graphs.capture.seq_lens,
    ],
    ids=["ids", "positions", "out_loc", "new", "pages", "indices", "last"],
)
def test_what_is_forgotten_gives_wrong_tokens(monkeypatch, tensor):
    with stand_ins():
        driver = drive()
        graphs = graphs_of(driver)
        backend = driver.scheduler.engine.attn_backend
        kept = tensor(graphs, backend).clone()
        prepare = fi.FlashInferBackend.prepare_for_replay

        def forgetful(self, batch):
            prepare(self, batch)
            if batch.is_prefill:
                tensor(graphs, backend).copy_(kept)

        monkeypatch.setattr(
            fi.FlashInferBackend, "prepare_for_replay", forgetful
        )
        try:
            assert not right(driver)
        except ValueError as error:
            assert "does not match qo_indptr" in str(error)


def test_idle_blocks_have_something_harmless_to_do(monkeypatch):
    """Large batches share no sequences, and FlashInfer does not tell such blocks."""
    monkeypatch.setattr(fi, "ENOUGH_TOKENS", 128)
    with stand_ins():
        driver = drive()
        assert right(driver)
        wrappers = driver.scheduler.engine.attn_backend._prefill_graphs
        shared = {size: wrappers[size].shares_sequences for size in SIZES[:4]}
        assert shared == {64: True, 128: False, 192: False, 256: False}
        monkeypatch.setattr(fi_prefill, "plan_nothing", lambda wrapper: None)
        with pytest.raises(RuntimeError, match="compute anything"):
            drive()


def test_a_lower_tier_has_sent_all_layers_before_a_recording_runs():
    with stand_ins():
        driver = drive(overlap=False)
        graphs, order = graphs_of(driver), []
        pool = driver.scheduler.engine.ctx.kv_cache
        read = pool.k_cache
        pool.k_cache = lambda layer: order.append(layer) or read(layer)
        for size, run in graphs._runs.items():
            graphs._runs[size] = Noted(run, order)
        driver.submit(1, PROMPTS[5], max_tokens=1)
        driver.run()
    layers = [*range(pool.num_layers)]
    assert order == [*layers, "replay", *layers]


class Noted:
    def __init__(self, run, order):
        self._run, self._order = run, order

    def replay(self):
        self._order.append("replay")
        self._run.replay()


def test_sizes_whose_partial_results_have_no_room_are_left_out():
    plans = torch.zeros(8, dtype=torch.uint8)

    def fitting(size: int, heads: tuple[int, int, int]) -> list[int]:
        room = torch.empty(size, dtype=torch.uint8)
        return PrefillWrappers((room, plans), heads, 64, 5).fitting(SIZES)

    usual = 128 << 20
    # 32 heads, 128 rows of 128 values and a sum, in float32.
    each = 4 * 32 * 128 * 129
    assert fitting(usual, (16, 8, 128)) == [*SIZES]
    # 264 blocks for 4 kv heads.
    assert each * 66 > usual
    unshared = [size for size in SIZES if size >= 512]
    assert fitting(usual, (32, 4, 128)) == unshared
    assert fitting(1 << 20, (16, 8, 128)) == unshared
    # 33 blocks for 8 of them.
    assert fitting(each * 33 - 1, (32, 8, 128)) == unshared
    assert fitting(each * 33, (32, 8, 128)) == [*SIZES]
    # A block for each 128 rows and one for each further request: 6 for 256
    # tokens, where 64 kv heads leave 4 by the first count.
    assert fitting(2 * each * 6, (64, 64, 128)) == [
        *(size for size in SIZES if size <= 256),
        *unshared,
    ]
