"""Every two settings of the engine together at least once: the same tokens."""

from itertools import product
from pathlib import Path

import pytest

from tests.matrix import (
    VALUES,
    Row,
    allowed,
    cover,
    equal_tokens,
    pairs,
    run,
    table,
)

ROWS = cover()
PAGE = Path(__file__).resolve().parents[1] / "docs/outputs/matrix.txt"


@pytest.fixture(scope="module")
def outcomes():
    return dict(run(ROWS))


def test_every_pair_that_goes_together_is_there():
    possible = [row for one in product(*VALUES) if allowed(row := Row(*one))]
    wanted = set().union(*map(pairs, possible))
    assert set().union(*map(pairs, ROWS)) == wanted
    assert len(ROWS) < 40 and all(map(allowed, ROWS))


@pytest.mark.parity
@pytest.mark.parametrize("row", ROWS, ids=["-".join(map(str, r)) for r in ROWS])
def test_the_tokens_are_those_of_transformers(row, outcomes):
    outcome = outcomes[row]
    assert not outcome.error, outcome.error
    equal, total = equal_tokens(row, outcome)
    assert equal == total
    assert outcome.agree
    assert (outcome.replays > 0) == row.graph
    hits = row.cache == "radix" and row.page < 256  # prompts are shorter
    assert (outcome.cached > 0) == hits


def test_the_page_shows_the_table(outcomes):
    found = [(row, outcomes[row]) for row in outcomes]
    assert PAGE.read_text() == f"$ python -m tests.matrix\n{table(found)}\n"
