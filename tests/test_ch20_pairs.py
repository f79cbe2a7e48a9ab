"""Experts with every attention backend, graphs, ranks, pages, cache and loop."""

import pytest
import torch

from tests import pairs

SETUPS = pairs.cover_experts()
IDS = ["-".join(map(str, setup)).replace(" ", "_") for setup in SETUPS]


def test_every_value_of_every_setting_is_met():
    wanted = pairs.factors([pairs.WITH_EXPERTS])
    for place, values in enumerate(wanted):
        assert {setup[place] for setup in SETUPS} == set(values)


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    with torch.inference_mode():
        return dict(pairs.run_all(SETUPS, tmp_path_factory.mktemp("ranks")))


@pytest.mark.parity
@pytest.mark.parametrize("setup", SETUPS, ids=IDS)
def test_experts_go_with_any_setting(setup, noted):
    ranks = noted[setup]
    assert pairs.differences(setup, ranks[0]["answers"]) == []
    for other in ranks:
        assert other["answers"] == ranks[0]["answers"]
        assert bool(other["replays"]) == (setup.graphs == "graphs")
