"""Percentiles of buckets, by hand, and of the server's own histogram."""

import pytest

from minisgl.server.metrics import Histogram
from minisgl.server.quantile import between, quantile

INF = float("inf")
OLD = [(0.1, 10.0), (0.5, 60.0), (1.0, 100.0), (INF, 100.0)]
NEW = [(0.1, 110.0), (0.5, 260.0), (1.0, 499.0), (INF, 500.0)]


def test_what_came_between_two_readings():
    assert between(OLD, NEW) == [
        (0.1, 100.0),
        (0.5, 200.0),
        (1.0, 399.0),
        (INF, 400.0),
    ]
    assert between(OLD, OLD) == [(bound, 0.0) for bound, _ in OLD]


def test_a_server_that_was_started_anew_has_only_new_values():
    assert between(NEW, OLD) == OLD


@pytest.mark.parametrize(
    ("q", "value"),
    [
        (0.05, 0.05),  # number 5 of 10 in the first bucket
        (0.1, 0.1),
        (0.35, 0.3),  # 25 of the 50 in the second one
        (0.6, 0.5),
        (0.8, 0.75),
        (1.0, 1.0),
    ],
)
def test_a_value_lies_as_far_into_its_bucket_as_its_number(q, value):
    assert quantile(q, OLD) == pytest.approx(value)


def test_of_the_last_bucket_only_its_lower_bound_is_known():
    assert quantile(0.99, [(1.0, 50.0), (2.0, 60.0), (INF, 100.0)]) == 2.0


def test_empty_buckets_are_passed_over():
    buckets = [(1.0, 0.0), (2.0, 0.0), (4.0, 8.0), (8.0, 8.0), (INF, 8.0)]
    assert quantile(0.5, buckets) == pytest.approx(3.0)
    assert quantile(1.0, buckets) == pytest.approx(4.0)
    assert quantile(0.0, buckets) == pytest.approx(2.0)


def test_without_a_value_there_is_no_percentile():
    assert quantile(0.5, [(1.0, 0.0), (INF, 0.0)]) is None


def test_the_servers_histogram_and_its_values_agree():
    histogram = Histogram((1, 2, 4, 8))
    values = [0.01 * i for i in range(1, 701)]
    for value in values:
        histogram.add(value)
    samples = histogram.family("x", "").samples
    buckets = [
        (float(s.labels["le"]), s.value)
        for s in samples
        if s.name == "x_bucket"
    ]
    for q in (0.1, 0.5):
        assert quantile(q, buckets) == pytest.approx(7 * q, rel=0.01)
    # These lie evenly up to 7; the bucket goes to 8.
    assert 7 * 0.9 < quantile(0.9, buckets) < 8
