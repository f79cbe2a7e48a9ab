"""Parity where settings meet: attention, graphs, ranks, pages, cache, loop, model."""

from collections import Counter
from itertools import product

import pytest
import torch

from tests import pairs
from tests.fakes.install import stand_ins
from tests.pairs import MODELS, Setup, cover, refusal

SETUPS = cover(MODELS)
IDS = ["-".join(map(str, setup)).replace(" ", "_") for setup in SETUPS]


def test_every_pair_that_can_be_is_met():
    met = set().union(*map(pairs.pairs_of, SETUPS))
    every = [Setup(*values) for values in product(*pairs.factors(MODELS))]
    for setup in every:
        assert refusal(setup) or pairs.pairs_of(setup) <= met
    assert not any(map(refusal, SETUPS))
    # As many as the two longest lists of values have pairs, and hardly more.
    assert 5 * 4 <= len(SETUPS) <= 25
    assert set(Counter(setup.ranks for setup in SETUPS)) == {1, 2, 4}


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    """What each rank of each engine noted; engines of as many ranks share them."""
    with torch.inference_mode():
        return dict(pairs.run_all(SETUPS, tmp_path_factory.mktemp("ranks")))


@pytest.mark.parity
@pytest.mark.parametrize("setup", SETUPS, ids=IDS)
def test_any_two_settings_give_the_same_tokens(setup, noted):
    ranks = noted[setup]
    assert len(ranks) == setup.ranks
    assert pairs.differences(setup, ranks[0]["answers"]) == []
    for other in ranks:
        assert other["answers"] == ranks[0]["answers"]
        assert other["replays"] == ranks[0]["replays"]
        assert bool(other["replays"]) == (setup.graphs == "graphs")
    kinds = {"torch": "Torch", "fi": "FlashInfer", "fa3,fi": "Hybrid"}
    kind = kinds.get(setup.attention, "FlashAttention")
    assert ranks[0]["kind"] == f"{kind}Backend"


REFUSED = [
    Setup("fa2", "eager", 1, 16, "radix", "overlap", "qwen3-tiny"),
    Setup("fa2", "graphs", 2, 1, "naive", "in turn", "qwen2-tiny"),
    Setup("fi", "graphs", 1, 256, "radix", "overlap", "mistral-tiny"),
    Setup("fa3,fi", "eager", 1, 1, "radix", "overlap", "mistral-tiny"),
]


@pytest.mark.parametrize("setup", REFUSED, ids=lambda s: "-".join(map(str, s)))
def test_what_cannot_be_is_refused_at_the_start(setup):
    from minisgl.engine import Engine

    config = pairs.config_of(setup)
    with (
        stand_ins(hopper=setup.attention != "fa2"),
        pytest.raises(ValueError, match=f"cannot be used: .*{refusal(setup)}"),
    ):
        Engine(config)
