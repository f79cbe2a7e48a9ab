"""Recorded when wanted: how many, in which order, and at nobody's cost."""

import pytest
import torch

from minisgl.engine import engine as engine_file
from minisgl.engine.on_demand import OnDemandRunner
from tests.driver import Driver
from tests.fakes.install import stand_ins
from tests.parity import model_under_test, prompts

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
SIZES = [1, 2, 3, 4, 6]


@pytest.fixture
def start(monkeypatch):
    """Makes drivers whose engines record on demand; notes what they record."""
    monkeypatch.setattr(engine_file, "GraphRunner", OnDemandRunner)
    capture = OnDemandRunner._capture

    def noted(self, size, model):
        self.made = [*getattr(self, "made", []), size]
        capture(self, size, model)

    monkeypatch.setattr(OnDemandRunner, "_capture", noted)

    def make(name="torch", most=4, **settings):
        monkeypatch.setattr(OnDemandRunner, "most", most)
        driver = Driver(
            FOLDER,
            page_size=4,
            pages=512,
            attention_backend=name,
            cuda_graph_bs=SIZES,
            max_seq_len_override=256,
            **settings,
        )
        return driver, driver.scheduler.engine.graph_runner

    return make


def ask(driver, lengths):
    for uid, length in enumerate(lengths, start=len(driver.answers)):
        driver.submit(uid, PROMPTS[2 + uid % 6], max_tokens=length)
    driver.run()


def test_nothing_is_recorded_before_it_is_wanted(start):
    driver, runner = start()
    assert (len(runner.graph_map), runner.max_graph_bs) == (0, 6)
    ask(driver, [6, 6])
    assert runner.made == [2] == [*runner.graph_map]
    ask(driver, [6, 6])
    assert runner.made == [2], "it was there already"
    ask(driver, [6, 6, 6, 6, 6])
    assert runner.made == [2, 6], "five are filled up to six"
    driver.assert_parity()


def test_never_more_than_most(start):
    driver, runner = start(most=2)
    for count in (1, 2, 3, 4, 5):
        ask(driver, [5] * count)
        assert len(runner.graph_map) == min(count, 2)
    assert [*runner.graph_map] == [4, 6]
    driver.assert_parity()


def test_what_was_used_last_stays(start):
    driver, runner = start(most=2)
    for count in (1, 2, 1, 3):
        ask(driver, [5] * count)
    assert [*runner.graph_map] == [1, 3]
    assert runner.made == [1, 2, 3]
    ask(driver, [5])
    assert [*runner.graph_map] == [3, 1]
    ask(driver, [5, 5])
    assert [*runner.graph_map] == [1, 2]
    assert runner.made == [1, 2, 3, 2]
    driver.assert_parity()


@pytest.mark.parametrize("name", ["torch", "fi", "fa"])
def test_a_capture_changes_nothing_of_running_requests(start, name):
    with stand_ins():
        driver, runner = start(name)
        for uid in (4, 5):
            driver.submit(uid, PROMPTS[uid], max_tokens=12)
        for _ in range(5):
            driver.step()
        assert 2 in runner.graph_map
        engine = driver.scheduler.engine
        slots = engine.ctx.kv_cache._slots
        before = slots.clone()
        with torch.inference_mode():
            runner._record(4)
        differ = (slots != before).any(0).any(0).flatten(1).any(1)
        changed = differ.nonzero().flatten().tolist()
        assert changed in ([], [engine.num_pages * 4])
        driver.run()
    driver.assert_parity(length=12)


@pytest.mark.parity
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["torch", "fi", "fa,fi"])
def test_the_tokens_are_the_same(start, name, overlap):
    """Requests come and go, with fewer recordings than sizes."""
    with stand_ins():
        driver, runner = start(name, most=2, overlap=overlap)
        for uid in range(6):
            driver.submit(uid, PROMPTS[2 + uid], max_tokens=(16, 6, 9)[uid % 3])
            driver.step()
        driver.run()
    driver.assert_parity()
    driver.assert_clean()
    assert len(runner.made) > len(SIZES) - 2
