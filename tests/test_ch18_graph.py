"""Recorded decode steps: the same tokens, and only what was copied is read."""

import sys
from copy import copy

import pytest
import torch

from minisgl.attention.utils import BaseCaptureData
from minisgl.core import Batch
from minisgl.distributed import DistributedInfo
from minisgl.engine import Engine, EngineConfig, graph
from minisgl.engine.graph import (
    GraphCaptureBuffer,
    _determine_cuda_graph_bs,
    get_free_memory,
    largest_batch,
    mem_GB,
)
from minisgl.utils import nvtx_annotate
from minisgl.utils.device import NullStream
from minisgl.utils.recorded import CudaGraph, EmulatedGraph, new_recordings
from tests.driver import Driver
from tests.fakes.install import stand_ins
from tests.late_device import make_late
from tests.parity import model_under_test, prompts
from tools.models import model_path

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
CPU = torch.device("cpu")
GIB = 1 << 30


def drive(name="torch", page_size=1, *, folder=FOLDER, **settings) -> Driver:
    """An engine with recordings for up to 8 requests, unless told otherwise."""
    settings = {"cuda_graph_max_bs": 8, "max_seq_len_override": 256} | settings
    return Driver(
        folder,
        page_size=page_size,
        pages=4096 // page_size,
        attention_backend=name,
        **settings,
    )


def count_replays(driver: Driver) -> list[tuple[int, int]]:
    """(requests, padded size) of every decode batch that is replayed."""
    runner, seen = driver.scheduler.engine.graph_runner, []
    replay = runner.replay

    def counted(batch):
        if batch.is_decode:
            seen.append((batch.size, batch.padded_size))
        return replay(batch)

    runner.replay = counted
    return seen


# Sizes.


@pytest.mark.parametrize(
    ("given", "largest", "expected"),
    [
        ([8, 1, 8, 3], None, [1, 3, 8]),
        ([5], 100, [5]),
        ([], None, []),
        (None, 0, []),
        (None, 1, [1]),
        (None, 3, [1, 2, 3]),
        (None, 8, [1, 2, 4, 8]),
        (None, 20, [1, 2, 4, 8, 16, 20]),
        (None, 32, [1, 2, 4, 8, 16, 24, 32]),
    ],
)
def test_sizes_to_capture(given, largest, expected):
    assert _determine_cuda_graph_bs(given, largest) == expected


def test_sizes_that_nobody_chose_go_up_to_256():
    sizes = _determine_cuda_graph_bs(None, None)
    assert sizes[:6] == [1, 2, 4, 8, 16, 24]
    assert (len(sizes), sizes[-1]) == (35, 256)


def test_on_a_cpu_nothing_is_recorded_unless_asked_for():
    assert Driver(FOLDER).scheduler.engine.graph_runner.graph_bs_list == []
    runner = drive().scheduler.engine.graph_runner
    assert runner.graph_bs_list == [1, 2, 4, 8] == sorted(runner.graph_map)
    runner = drive(cuda_graph_bs=[3, 5]).scheduler.engine.graph_runner
    assert runner.graph_bs_list == [3, 5] and runner.max_graph_bs == 5
    few = drive(max_running_req=3).scheduler.engine.graph_runner
    assert few.graph_bs_list == [1, 2, 3]


def test_on_a_gpu_sizes_go_up_to_256_but_not_past_the_requests():
    class Backend:
        pads_to_context = False

    def largest(device="cuda", backend=Backend, **settings):
        config = EngineConfig(
            "m", DistributedInfo(0, 1), torch.bfloat16, **settings
        )
        return largest_batch(config, backend, torch.device(device))

    assert largest() == largest(max_running_req=1000) == 256
    assert largest(max_running_req=24) == 24
    assert largest(cuda_graph_max_bs=300, max_running_req=1000) == 300
    assert largest(cuda_graph_max_bs=300, max_running_req=24) == 24
    assert largest(cuda_graph_max_bs=0) == 0
    # Where it saves nothing, only what is asked for.
    padding = type("Padding", (), {"pads_to_context": True})
    for setting in ({"device": "cpu"}, {"backend": padding}):
        assert largest(**setting) == 0
        assert largest(**setting, cuda_graph_max_bs=8) == 8


def test_a_terminal_shows_how_far_the_capture_is(monkeypatch, capsys):
    drive()
    assert "Capturing graphs" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    drive()
    assert "Capturing graphs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ({"cuda_graph_bs": [4, 0]}, "are batch sizes, not"),
        ({"cuda_graph_max_bs": -1}, "at least 0, got -1"),
    ],
)
def test_sizes_out_of_range_are_refused(setting, match):
    with pytest.raises(ValueError, match=match):
        drive(**setting)


def test_sizes_for_which_no_memory_is_left_are_left_out(monkeypatch):
    warned: list[str] = []
    monkeypatch.setattr(graph.logger, "warning", warned.append)
    # Two logits of 4 bytes for each token of a vocabulary of 512, two requests.
    room = (256 << 20) + 2 * 8 * 512
    assert drive().scheduler.engine.sampler.vocab_size == 512 and not warned
    for spare, sizes in ((0, [1, 2]), (-1, [1]), (-(300 << 20), [])):
        free = room + spare
        monkeypatch.setattr(Engine, "_free_memory", lambda self, n=free: n)
        driver = drive()
        assert driver.scheduler.engine.graph_runner.graph_bs_list == sizes
        most = max(sizes, default=0)
        text = f"no recordings of batches over {most}: only {mem_GB(free)} are"
        assert warned.pop().startswith(text)
        assert warned == []
        seen = count_replays(driver)
        for uid in range(3):
            driver.submit(uid, PROMPTS[uid], max_tokens=4 + 2 * uid)
        driver.run()
        driver.assert_parity()
        assert {size for size, _ in seen} == set(sizes)


def test_memory_in_words():
    assert mem_GB(3 * GIB // 2) == "1.50 GiB"
    assert get_free_memory(CPU) == 0


# Tokens.

CASES = [
    ("torch", 1, True),
    ("torch", 16, True),
    ("fi", 1, True),
    ("fi", 4, True),
    ("fi", 16, True),
    ("fa", 1, True),
    ("fa", 16, True),
    ("fa", 256, False),  # flash-attn 2
    ("fa,fi", 4, True),
    ("fi,torch", 4, True),
]
IDS = [f"{name}-{size}-{'sm90' if h else 'sm80'}" for name, size, h in CASES]


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
@pytest.mark.parametrize(("name", "page_size", "hopper"), CASES, ids=IDS)
def test_recorded_steps_give_the_same_tokens(name, page_size, hopper, overlap):
    """Requests come and go, so that every size occurs, padded and not."""
    with stand_ins(hopper=hopper):
        driver = drive(name, page_size, overlap=overlap)
        seen = count_replays(driver)
        for uid, ids in enumerate(PROMPTS[2:9]):
            driver.submit(uid, ids, max_tokens=(16, 6, 8)[uid % 3])
            driver.step()
        driver.run()
    driver.assert_parity()
    driver.assert_clean()
    assert len(seen) == len([*driver.decodes()])
    assert {padded for _, padded in seen} == {1, 2, 4, 8}


@pytest.mark.parity
@pytest.mark.parametrize("cache", ["naive", "radix"])
@pytest.mark.parametrize("name", ["torch", "fi", "fa,fi"])
def test_recorded_steps_after_hits_and_chunks(name, cache):
    with stand_ins():
        driver = drive(name, 4, cache_type=cache, max_extend_tokens=40)
        for uid in (4, 9, 8):
            driver.submit(uid, PROMPTS[uid], max_tokens=8)
        driver.run()
        driver.submit(20, PROMPTS[9], max_tokens=8)
        driver.submit(21, PROMPTS[9][:70], max_tokens=8)
        driver.run()
    driver.assert_parity()
    driver.assert_clean()


@pytest.mark.parity
@pytest.mark.parametrize("model", ["qwen2-tiny", "llama3-tiny", "mistral-tiny"])
def test_recorded_steps_of_the_other_families(model):
    folder, asked = model_path(model), prompts(model)[1:5]
    with stand_ins():
        driver = drive("auto", 16, folder=folder, cuda_graph_bs=[2, 4])
        for uid, ids in enumerate(asked):
            driver.submit(uid, ids, max_tokens=16)
        driver.run()
    driver.assert_parity(length=16)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["torch", "fi", "fa"])
def test_the_buffer_of_a_replay_is_read_before_the_next_one(name):
    """On a device that is late, with one batch in flight and the next prepared."""
    with stand_ins():
        driver = drive(name, 4, overlap=True, max_extend_tokens=60)
        make_late(driver.scheduler)
        driver._log_steps()
        seen = count_replays(driver)
        for uid, ids in enumerate(PROMPTS[3:]):
            driver.submit(uid, ids, max_tokens=(16, 6, 8)[uid % 3])
        driver.run()
    driver.assert_parity()
    driver.assert_clean()
    assert seen


def test_batches_that_are_too_large_or_prefill_are_not_replayed():
    driver = drive(cuda_graph_bs=[2])
    runner, seen = driver.scheduler.engine.graph_runner, count_replays(driver)
    for uid in range(4):
        driver.submit(uid, PROMPTS[uid], max_tokens=6 + 2 * (uid < 2))
    driver.run()
    driver.assert_parity()
    assert seen == [(2, 2)] * 2
    other = copy(runner.dummy_req)
    other.table_idx = 0
    assert not runner.can_use_cuda_graph(Batch([other], "prefill"))
    assert runner.can_use_cuda_graph(Batch([runner.dummy_req], "decode"))


def test_without_its_recordings_an_engine_goes_on():
    driver = drive()
    driver.submit(1, PROMPTS[4], max_tokens=16)
    for _ in range(4):
        driver.step()
    driver.scheduler.engine.graph_runner.destroy_cuda_graphs()
    seen = count_replays(driver)
    driver.run()
    driver.assert_parity(length=16)
    assert seen == []


def test_recordings_go_before_the_ranks_part(monkeypatch):
    """With recorded launches left, NCCL would wait for them for ever."""
    engine, left = drive().scheduler.engine, []
    assert engine.graph_runner.max_graph_bs == 8
    monkeypatch.setattr(
        f"{Engine.__module__}.destroy_distributed",
        lambda: left.append(engine.graph_runner.max_graph_bs),
    )
    engine.tp_cpu_group = object()
    engine.shutdown()
    assert left == [0]


# A copy that is forgotten.


def forget(patch, owner, function, tensors) -> None:
    """After `function` of `owner` these tensors are as they were before."""
    original = getattr(owner, function)

    def forgetful(self, *args):
        kept = [(t, t.clone()) for t in tensors(self)]
        original(self, *args)
        for tensor, old in kept:
            tensor.copy_(old)

    patch.setattr(owner, function, forgetful)


def tokens_are_right(driver: Driver) -> bool:
    for uid in (4, 5, 7):
        driver.submit(uid, PROMPTS[uid], max_tokens=16)
    driver.run()
    return driver.has_parity(length=16)


@pytest.mark.parametrize("field", ["input_ids", "out_loc", "positions"])
@pytest.mark.parametrize("name", ["torch", "fi"])
def test_a_forgotten_input_gives_wrong_tokens(monkeypatch, name, field):
    with stand_ins():
        assert tokens_are_right(drive(name, 4))
        forget(
            monkeypatch,
            GraphCaptureBuffer,
            "copy_from",
            lambda buffer: [getattr(buffer, field)],
        )
        assert not tokens_are_right(drive(name, 4))


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("torch", lambda backend: [backend._capture.page_table]),
        ("torch", lambda backend: [backend._seen]),
        ("fa", lambda backend: [backend._capture.page_table]),
        ("fa", lambda backend: [backend._capture.seq_lens]),
        ("fi", lambda backend: [backend._capture.page_table]),
        ("fi", lambda backend: [backend._capture.cu_seqlens_k]),
        ("fi", lambda backend: [backend._capture.seq_lens]),
    ],
)
def test_forgotten_metadata_gives_wrong_tokens(monkeypatch, name, tensors):
    with stand_ins():
        driver = drive(name, 4)
        kind = type(driver.scheduler.engine.attn_backend)
        forget(monkeypatch, kind, "prepare_for_replay", tensors)
        try:
            assert not tokens_are_right(driver)
        except RuntimeError as error:
            assert "pages" in str(error), error


def test_an_emulated_recording_sees_its_own_tensors_only():
    x, y = torch.zeros(2), torch.zeros(2)
    recorded = EmulatedGraph()
    recorded.capture(lambda: y.copy_(x + 1))
    assert y.tolist() == [1, 1]
    x += 4
    recorded.replay()
    assert y.tolist() == [5, 5]
    assert isinstance(new_recordings(NullStream())(), EmulatedGraph)


def test_what_is_recorded_lies_at_fixed_places():
    buffer = GraphCaptureBuffer.init(4, 10, CPU)
    batch = Batch([object()] * 2, "decode")
    buffer.set_batch(batch)
    for name in ("input_ids", "out_loc", "positions"):
        mine, theirs = getattr(batch, name), getattr(buffer, name)
        assert mine.data_ptr() == theirs.data_ptr() and len(mine) == 2
    other = Batch([object()] * 3, "decode")
    for value, name in enumerate(("input_ids", "out_loc", "positions"), 1):
        setattr(other, name, torch.full((3,), value))
    buffer.copy_from(other)
    assert batch.input_ids.tolist() == [1, 1]
    assert buffer.out_loc.tolist() == [2, 2, 2, 0]
    assert buffer.positions.tolist() == [3, 3, 3, 0]
    assert buffer.logits.shape == (4, 10)
    assert buffer.logits.dtype == torch.float32


def test_capture_data_describes_requests_of_one_token():
    data = BaseCaptureData.create(3, 5, CPU)
    assert data.seq_lens.tolist() == [1, 1, 1]
    assert data.positions.tolist() == [0, 0, 0]
    assert (
        data.cu_seqlens_k.tolist() == data.cu_seqlens_q.tolist() == [0, 1, 2, 3]
    )
    assert data.page_table.shape == (3, 5)
    assert {t.dtype for t in vars(data).values()} == {torch.int32}


# Ranges for a profiler.


def test_annotated_functions_show_their_names(monkeypatch):
    from contextlib import contextmanager

    ranges = []

    @contextmanager
    def record(name):
        ranges.append(name)
        yield

    monkeypatch.setattr(torch.cuda.nvtx, "range", record)
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    class Layer:
        number = 7

        @nvtx_annotate("Layer_{}", layer_id_field="number")
        def forward(self, x):
            return x + 1

    @nvtx_annotate("Step")
    def step(x):
        """What it says."""
        return 2 * x

    assert (Layer().forward(1), step(2), step.__doc__) == (
        2,
        4,
        "What it says.",
    )
    assert ranges == ["Layer_7", "Step"]
    monkeypatch.setattr(torch.version, "cuda", None)
    plain = nvtx_annotate("Step")(abs)
    assert plain is abs


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_cuda_graph_sees_its_own_tensors_only():
    stream = torch.cuda.Stream()
    x, y = torch.zeros(2, device="cuda"), torch.zeros(2, device="cuda")
    make = new_recordings(stream)
    recorded, other = make(), make()
    assert isinstance(recorded, CudaGraph)
    for each, added in ((recorded, 1), (other, 2)):
        each.capture(lambda added=added: y.copy_(x + added))
    x += 4
    torch.cuda.synchronize()
    for each, expected in ((recorded, 5), (other, 6), (recorded, 5)):
        each.replay()
        torch.cuda.synchronize()
        assert y.tolist() == [expected, expected]
