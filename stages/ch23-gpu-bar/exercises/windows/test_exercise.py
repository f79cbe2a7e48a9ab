"""Closed forms beside the loops that they stand for."""

import pytest

from minisgl.benchmark.windows import attended, cache_bytes, even_batch
from minisgl.benchmark.workload import Request


def by_steps(prompt, output, window):
    contexts = [prompt + step for step in range(output)]
    return sum(min(n, window or n) for n in contexts)


@pytest.mark.parametrize("window", [None, 1, 4, 7, 8, 9, 12, 1000])
@pytest.mark.parametrize("output", [0, 1, 2, 5])
def test_every_step_counts_what_it_sees(output, window):
    assert attended(7, output, window) == by_steps(7, output, window)


def test_a_long_answer_takes_no_longer_to_count():
    million = 1_000_000
    want = million * million + million * (million - 1) // 2
    assert attended(million, million, None) == want
    assert attended(1, million, million * million) == by_steps(1, million, None)


def test_layers_differ():
    requests = [Request([1] * 5, 3), Request([2] * 20, 2)]
    full = 5 + 6 + 7 + 20 + 21
    cut = 5 + 6 + 6 + 6 + 6
    assert cache_bytes(requests, [None, 6, 6], 100) == 100 * (full + 2 * cut)


@pytest.mark.parametrize("windows", [[None] * 4, [None, 64, 64, 64], [8] * 4])
def test_the_batch_is_the_first_that_reads_as_much(windows):
    size = even_batch(1_000_000, windows, 1024, 500)
    row = 1024 * sum(min(500, window or 500) for window in windows)
    assert (size - 1) * row < 1_000_000 <= size * row


def test_a_batch_that_fits_exactly_is_enough():
    assert even_batch(6000, [None, 5], 100, 10) == 4
    assert even_batch(6001, [None, 5], 100, 10) == 5


def test_a_short_context_does_not_fill_a_window():
    assert even_batch(6000, [5, 500], 100, 10) == 4
