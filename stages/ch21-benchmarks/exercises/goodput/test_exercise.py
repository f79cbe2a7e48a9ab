"""Promises kept and broken, and a search that measures little."""

import pytest

from minisgl.benchmark.client import BenchmarkResult, BenchOneResult
from minisgl.benchmark.goodput import Goal, find_rate

GOAL = Goal(first=1.0, gap=0.25)


def answer(*tics):
    return BenchOneResult(list(tics), 10, len(tics) - 1)


@pytest.mark.parametrize(
    ("tics", "kept"),
    [
        ((0.0, 0.5, 0.625), True),
        ((8.0, 9.0, 9.25), True),
        ((0.0, 1.5, 1.625), False),
        ((0.0, 0.5, 0.625, 1.0, 1.125), False),
        ((0.0, 0.5), True),
        ((0.0, 1.5), False),
        ((0.0,), False),
    ],
)
def test_an_answer_keeps_both_or_not(tics, kept):
    assert GOAL.is_met(answer(*tics)) is kept


def test_the_share_counts_answers():
    found = [answer(0.0, 0.5), answer(0.0, 2.0), answer(0.0), answer(0.0, 1.0)]
    assert GOAL.share(BenchmarkResult(found)) == 0.5


class Server:
    """Keeps 99 of 100 promises up to a rate, and ever fewer beyond it."""

    def __init__(self, best):
        self.best, self.asked = best, []

    def measure(self, rate):
        self.asked.append(rate)
        return 0.99 if rate <= self.best else max(0, 0.9 - rate / 100)


@pytest.mark.parametrize("best", [0.6, 3.0, 7.77, 19.0])
def test_the_highest_good_rate_is_found(best):
    server = Server(best)
    found = find_rate(server.measure, 0.5, 20.0, 0.99, 0.1)
    assert best - 0.1 <= found <= best
    assert found in server.asked
    assert len(server.asked) <= 10


def test_where_all_is_good_one_look_is_enough():
    server = Server(50.0)
    assert find_rate(server.measure, 0.5, 20.0, 0.99, 0.1) == 20.0
    assert server.asked == [20.0]


def test_where_nothing_is_good_the_answer_is_zero():
    server = Server(0.0)
    assert find_rate(server.measure, 0.5, 20.0, 0.99, 0.1) == 0
    assert len(server.asked) == 2


def test_a_share_that_is_met_exactly_is_met():
    assert find_rate(lambda rate: 0.5, 1.0, 2.0, 0.5) == 2.0
