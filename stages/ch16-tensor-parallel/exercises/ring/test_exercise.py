"""A ring of threads: the sum, the same bits everywhere, and how much was sent."""

from queue import Queue
from threading import Thread

import pytest
import torch

from minisgl.distributed.ring import RingImpl


class Link:
    def __init__(self, before, after):
        self.before, self.after, self.sent = before, after, 0

    def send(self, x):
        self.sent += x.numel()
        self.after.put(x.clone())

    def receive(self):
        return self.before.get(timeout=20)


def in_a_ring(size, work):
    """work(ring, rank) in a thread for each rank; what came of it, and links."""
    queues = [Queue() for _ in range(size)]
    links = [Link(queues[r], queues[(r + 1) % size]) for r in range(size)]
    results = [None] * size

    def run(rank):
        try:
            results[rank] = work(RingImpl(rank, size, links[rank]), rank)
        except Exception as error:
            results[rank] = error

    threads = [
        Thread(target=run, args=(rank,), daemon=True) for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for result in results:
        if isinstance(result, Exception):
            raise result
    assert all(result is not None for result in results), "a rank waits"
    assert all(queue.empty() for queue in queues), "something was not received"
    return results, links


def inputs(size, shape):
    generator = torch.Generator().manual_seed(size)
    return [torch.randn(shape, generator=generator) for _ in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("shape", [(12,), (3, 5), (2,)])
def test_every_rank_has_the_sum(size, shape):
    xs = inputs(size, shape)
    expected = torch.stack(xs).sum(0)
    results, _ = in_a_ring(
        size, lambda ring, rank: ring.all_reduce(xs[rank].clone())
    )
    for result in results:
        torch.testing.assert_close(result, expected)
        assert torch.equal(result, results[0])


def test_the_sum_is_in_place():
    xs = inputs(3, (6,))
    results, _ = in_a_ring(3, lambda ring, rank: ring.all_reduce(xs[rank]))
    assert all(a is b for a, b in zip(results, xs, strict=True))


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_a_rank_sends_less_than_twice_what_it_has(size):
    xs = inputs(size, (12,))
    _, links = in_a_ring(size, lambda ring, rank: ring.all_reduce(xs[rank]))
    assert [link.sent for link in links] == [2 * (size - 1) * 12 // size] * size


def test_several_sums_in_a_row():
    def work(ring, rank):
        x = torch.full((5,), float(rank + 1))
        for _ in range(3):
            x = ring.all_reduce(x)
        return x

    results, _ = in_a_ring(3, work)
    assert all(result.tolist() == [54.0] * 5 for result in results)


def test_gathering_keeps_the_order_of_ranks():
    results, _ = in_a_ring(
        3, lambda ring, rank: ring.all_gather(torch.tensor([[rank]]))
    )
    assert all(result.tolist() == [[0], [1], [2]] for result in results)
