"""A server of two ranks: over HTTP, when one dies, when the model cannot be cut."""

import os
import signal

import pytest

from minisgl.utils import load_tokenizer
from tests.live import Live, has_torch
from tests.parity import prompts, reference
from tools.models import model_path

QWEN = "qwen3-tiny"
TWO = ["--tensor-parallel-size", "2"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """One that answers, and one that cannot start; started together."""
    folder = tmp_path_factory.mktemp("servers")
    smol = model_path("smollm2-135m")
    with (
        Live(folder / "two", model_path(QWEN), *TWO) as two,
        Live(folder / "uneven", smol, *TWO) as uneven,
    ):
        yield two, uneven


def test_c28_uneven_heads_end_the_start_with_one_line(servers):
    _, uneven = servers
    assert uneven.wait_end(60) == 1
    [line] = uneven.errors
    assert "9 query heads" in line and "2 ranks" in line
    assert "Traceback" not in uneven.said


@pytest.mark.parity
def test_the_answer_over_http_is_that_of_one_rank(servers):
    two, _ = servers
    two.wait_ready()
    ids = prompts(QWEN)[0]
    body = {
        "model": str(model_path(QWEN)),
        "prompt": ids,
        "max_tokens": 16,
        "temperature": 0,
        "ignore_eos": True,
    }
    status, answer = two.post("/v1/completions", body)
    assert status == 200, answer
    tokenizer = load_tokenizer(str(model_path(QWEN)))
    expected = reference(QWEN, ids, 16).ids
    text = tokenizer.decode(expected, skip_special_tokens=True)
    assert answer["choices"][0]["text"] == text
    assert answer["usage"]["completion_tokens"] == 16


def test_c32_each_rank_has_its_share_of_the_cores(servers):
    two, _ = servers
    two.wait_ready()
    for rank in (0, 1):
        [line] = [line for line in two.said.splitlines() if f"TP{rank}" in line]
        assert "computes with 1 of" in line  # OMP_NUM_THREADS, which is set


def test_c23_a_rank_that_dies_ends_the_server(servers):
    two, _ = servers
    two.wait_ready()
    stream = two.stream()
    ranks = [pid for pid in two.children() if has_torch(pid)]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    assert two.wait_end(20) == 1
    [line] = two.errors
    assert line.startswith("error: scheduler-1: killed by SIGKILL")
    assert b"killed by SIGKILL" in stream.read()


def test_c31_a_server_of_two_ranks_ends_when_it_is_told(tmp_path):
    with Live(tmp_path / "told", model_path(QWEN), *TWO) as told:
        told.wait_ready()
        told.signal(signal.SIGTERM)
        assert told.wait_end(15) == 0
        assert told.errors == []
