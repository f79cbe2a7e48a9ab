"""Kernels that do several steps at once: the same as the steps, one by one."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import minisgl.kernel.fused as fused_module
from minisgl.engine.sample import FAILED_TOKEN
from minisgl.kernel.fused import runs_triton
from tests import fused
from tests.parity import model_under_test, prompts, reference

ROOT = Path(fused_module.__file__).parents[2]
FOLDER = model_under_test("qwen3-tiny")
ASKED = prompts(FOLDER)[:2]
WAYS = ["interpreted", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(scope="module")
def interpreted():
    """What tests/fused.py found, with Triton's interpreter on the CPU."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    program = ROOT / "tests" / "fused.py"
    done = subprocess.run(
        [sys.executable, str(program), str(FOLDER), json.dumps(ASKED)],
        capture_output=True,
        text=True,
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path},
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=WAYS)
def found(request):
    if request.param == "cuda":
        return fused.everything("cuda")
    return request.getfixturevalue("interpreted")


def test_a_draw_is_that_of_torch(found):
    for size, case in zip(fused.SIZES, found["drawn"], strict=True):
        pairs = zip(case["got"], case["expected"], strict=True)
        differ = sum(got != expected for got, expected in pairs)
        # Sums in another order may fall on the other side of an edge.
        assert differ <= size[0] // 32, (size, case)


def test_a_row_of_temperature_0_gets_its_best_token(found):
    for case in found["drawn"]:
        assert case["greedy"] == case["best"]


def test_rows_that_are_no_numbers_fail_and_masked_tokens_never_come(found):
    for tokens in found["edges"].values():
        assert tokens[:3] == [FAILED_TOKEN] * 3
        assert tokens[3] == 4711 and tokens[4] == 102 and tokens[5] == 4098


def test_tokens_come_as_often_as_they_should(found):
    counts = found["counts"]
    total = sum(counts)
    for i, count in enumerate(counts):
        share = (i + 1) / 10
        far = 5 * (total * share * (1 - share)) ** 0.5
        assert abs(count - total * share) < far


def test_heads_are_normed_and_rotated(found):
    assert max(found["rotated"]) < 1e-5


def test_keys_and_values_are_stored_on_the_way(found):
    assert found["stored"] == [True] * len(fused.ROPES)


@pytest.mark.parity
def test_parity_through_both_kernels(interpreted):
    drawn, greedy = interpreted["ids"]
    assert greedy == reference(FOLDER, ASKED[1], 4).ids
    assert len(drawn) == 4 and drawn != reference(FOLDER, ASKED[0], 4).ids
    assert interpreted["stored ids"] == [drawn, greedy]
    # A draw a step, and one kernel a layer and step.
    calls = interpreted["calls"]
    assert calls.count("draw_rows") == 4
    assert calls.count("norm_rope") % 4 == 0 and "norm_rope" in calls
    assert interpreted["attended"] == calls.count("norm_rope")


def test_on_a_cpu_torch_does_all_of_it():
    assert "TRITON_INTERPRET" not in os.environ
    assert not runs_triton(torch.device("cpu"))
