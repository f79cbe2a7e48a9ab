"""Chapter 11: the overlap loop, its faults, its price, and aborts at every moment."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import pytest
import torch

from minisgl.core import Batch
from minisgl.message import AbortBackendMsg, ExitMsg
from minisgl.scheduler import Scheduler
from minisgl.scheduler.inflight import InflightRows
from tests.driver import Driver, poison
from tests.handmade import make_req
from tests.late_device import LateStream, make_late
from tests.parity import model_under_test, prompts, reference

FOLDER = model_under_test("qwen3-tiny")
PROMPTS = prompts(FOLDER)
SHORT, *OTHERS, LONG = sorted(PROMPTS, key=len)
NEAR, FAR = OTHERS[0], OTHERS[-1]


def start(*, late: bool = False, overlap: bool = True, **settings) -> Driver:
    driver = Driver(FOLDER, overlap=overlap, **settings)
    if late:
        driver.stream = make_late(driver.scheduler)
        driver._log_steps()
    return driver


def cut(prompt: list[int], least: int) -> tuple[int, list[int]]:
    """A token to end at, and the answer up to it: `least` tokens or a few more."""
    ids = reference(FOLDER, prompt, 32).ids
    n = next(i for i in range(least - 1, 32) if ids[i] not in ids[:i])
    return ids[n], ids[: n + 1]


def launches(driver: Driver, uid: int) -> int:
    return sum(uid in step.tokens for step in driver.steps)


# The four faults. Each test fails when tests/reverts/K-*.patch is applied.


def test_fault1_finishing_is_decided_by_the_batch_that_came_back():
    driver = start()
    for uid, length in enumerate([1, 2, 5, 9]):
        driver.submit(uid, PROMPTS[uid], max_tokens=length)
    driver.run()
    for uid, length in enumerate([1, 2, 5, 9]):
        driver.assert_parity(uid, length=length)
        assert driver.ended[uid].finish_reason == "length"


def test_fault2_nothing_is_sent_after_the_end_token():
    end, expected = cut(NEAR, 4)
    driver = start(ends=[end])
    driver.submit(1, NEAR, max_tokens=30, ignore_eos=False)
    driver.submit(2, FAR, max_tokens=12)
    driver.run()  # a message after the last one fails in here
    assert driver.answers[1] == expected
    assert driver.ended[1].finish_reason == "stop"
    driver.assert_parity(2, length=12)


def test_fault3_a_row_is_not_given_on_while_a_batch_has_it():
    end, expected = cut(SHORT, 4)
    driver = start(late=True, ends=[end], max_running_req=1)
    driver.submit(1, SHORT, max_tokens=30, ignore_eos=False)
    driver.submit(2, LONG, max_tokens=8)
    assert len(LONG) > len(SHORT) + len(expected), (
        "what is written must hit LONG"
    )
    driver.run()
    assert driver.answers[1] == expected
    driver.assert_parity(2, length=8)
    driver.assert_clean()


def test_fault4_an_abort_while_a_prefill_is_in_flight_frees_once():
    driver = start(max_extend_tokens=20, page_size=4)
    driver.submit(1, LONG, max_tokens=8)
    driver.step()
    while driver.scheduler.prefill_manager.pending_list:
        driver.step()
    assert (
        driver.data is not None and driver.data.forward_input.batch.is_prefill
    )
    driver.abort(1)
    driver.run()
    driver.assert_every_page()
    assert driver.answers[1] == []


# The loop.


@contextmanager
def logged(driver: Driver) -> Iterator[list[str]]:
    """Lines ``launch N`` and ``read N``: the host's order of events."""
    log: list[str] = []
    scheduler, batches = driver.scheduler, []
    launch, process = scheduler._launch, scheduler._process_last_data

    def launched(forward_input):
        data = launch(forward_input)
        if data is not None:
            batches.append(data.forward_input.batch)
            log.append(f"launch {len(batches)}")
        return data

    def processed(data):
        if data is not None:
            same = [batch is data.forward_input.batch for batch in batches]
            log.append(f"read {same.index(True) + 1}")
        process(data)

    scheduler._launch, scheduler._process_last_data = launched, processed
    yield log


@pytest.mark.parametrize("overlap", [True, False])
def test_the_next_batch_is_launched_before_the_last_one_is_read(overlap):
    driver = start(overlap=overlap)
    with logged(driver) as log:
        driver.submit(1, NEAR, max_tokens=3)
        driver.run()
    together = [
        "launch 1",
        "launch 2",
        "read 1",
        "launch 3",
        "read 2",
        "read 3",
    ]
    in_turn = ["launch 1", "read 1", "launch 2", "read 2", "launch 3", "read 3"]
    assert log == (together if overlap else in_turn)


def test_no_token_is_waited_for_before_the_next_batch_is_launched():
    driver = start(late=True)
    driver.submit(1, NEAR, max_tokens=4)
    driver.step()
    for _ in range(3):
        before = len(driver.stream.todo)
        assert before, "the batch in flight was waited for"
        driver.step()
        assert driver.stream.todo, "the batch just launched was waited for"
    driver.run()
    driver.assert_parity(length=4)


@pytest.mark.parametrize("overlap", [True, False])
def test_an_end_token_costs_one_step_more_and_a_length_none(overlap):
    end, expected = cut(NEAR, 5)
    driver = start(overlap=overlap, ends=[end])
    driver.submit(1, NEAR, max_tokens=30, ignore_eos=False)
    driver.submit(2, FAR, max_tokens=len(expected))
    driver.run()
    assert driver.answers[1] == expected
    assert launches(driver, 1) == len(expected) + overlap
    assert launches(driver, 2) == len(expected)
    driver.assert_every_page()


def test_an_end_token_that_is_the_last_anyway_stops_without_a_step_more():
    end, expected = cut(NEAR, 5)
    driver = start(ends=[end])
    driver.submit(1, NEAR, max_tokens=len(expected), ignore_eos=False)
    driver.run()
    assert driver.ended[1].finish_reason == "stop"
    assert launches(driver, 1) == len(expected)


def test_two_end_tokens_in_a_row_end_a_request_once():
    # The void step may well make another end token.
    ids = reference(FOLDER, NEAR, 32).ids
    driver = start(ends=sorted(set(ids)))
    driver.submit(1, NEAR, max_tokens=30, ignore_eos=False)
    driver.run()
    assert driver.answers[1] == ids[:1]
    driver.assert_every_page()


@pytest.mark.parametrize("overlap", [True, False])
def test_run_forever_deals_with_the_batch_in_flight_at_the_end(overlap):
    driver = start(overlap=overlap)
    scheduler, waits = driver.scheduler, []
    driver.submit(1, NEAR, max_tokens=2)
    inbox = [[], [ExitMsg()]] if overlap else [[ExitMsg()]]
    feed = [driver.scheduler.inbox, *inbox]

    def receive(blocking=False):
        waits.append(blocking)
        return feed.pop(0)

    scheduler.receive_msg = receive
    scheduler.run_forever()
    assert scheduler.stopped and not feed
    tokens = [msg.next_token for msg in scheduler.outbox]
    assert tokens == reference(FOLDER, NEAR, 2).ids
    assert scheduler.outbox[-1].finished
    assert waits == [True, False, False][: len(waits)]


@pytest.mark.parametrize("overlap", [True, False])
def test_the_loop_waits_for_messages_only_when_nothing_is_in_flight(overlap):
    driver = start(overlap=overlap)
    waits, receive = [], driver.scheduler.receive_msg

    def noted(blocking=False):
        waits.append(blocking)
        return receive(blocking)

    driver.scheduler.receive_msg = noted
    driver.step()
    driver.submit(1, NEAR, max_tokens=2)
    driver.run()
    driver.step()
    busy = 2 if overlap else 1
    assert waits == [True, True, *[False] * busy, True]


# What is kept of rows in flight.


def batch_of(*reqs) -> Batch:
    return Batch(reqs=list(reqs), phase="decode")


def test_a_request_ends_when_its_last_batch_is_back():
    rows, req, other = (
        InflightRows(),
        make_req([1, 2], 0, 4),
        make_req([3], 1, 4),
    )
    first, second = batch_of(req, other), batch_of(req)
    rows.launch(first)
    rows.launch(second)
    assert rows.find(req.uid) is req and not rows.is_ending(req)
    assert rows.end(req, failed=True) is False
    assert rows.is_ending(req) and rows.find(req.uid) is None
    assert rows.retire(first) == []
    assert rows.end(other, failed=False) is True
    assert rows.retire(second) == [(req, True)]
    assert not rows.is_ending(req)
    assert rows.end(req, failed=False) is True


def test_the_request_that_ends_is_the_one_launched_last():
    # A chunk and what follows it are two objects of one request.
    rows, chunk, rest = (
        InflightRows(),
        make_req([1], 0, 4),
        make_req([1, 2], 0, 4),
    )
    rows.launch(batch_of(chunk))
    rows.launch(batch_of(rest))
    assert rows.find(0) is rest
    assert not rows.end(chunk, failed=False)
    assert rows.retire(batch_of(chunk)) == []
    assert rows.retire(batch_of(rest)) == [(rest, False)]


# Aborts.


@pytest.mark.parametrize("overlap", [True, False])
def test_c04_abort_between_the_last_launch_and_its_result(overlap):
    driver = start(overlap=overlap, max_running_req=2)
    driver.submit(1, NEAR, max_tokens=4)
    while not (driver.data and driver.data.forward_input.last_steps == [True]):
        if 1 in driver.ended:
            break  # without overlap nothing is ever between the two
        driver.step()
    assert overlap == (1 not in driver.ended)
    for uid in (1, 1, 999):  # now, twice, unknown
        driver.abort(uid)
    driver.run()
    driver.assert_every_page()
    assert len(driver.answers[1]) == (3 if overlap else 4)
    driver.abort(1)  # after the end
    driver.submit(2, SHORT, max_tokens=6)
    driver.submit(3, FAR, max_tokens=6)
    driver.step()
    running = driver.scheduler.decode_manager.running_reqs.values()
    assert sorted(req.table_idx for req in running) == [0, 1]
    driver.run()
    driver.assert_parity(2, 3, length=6)
    driver.assert_every_page()


def moment(driver: Driver, uid: int) -> str:
    """Where a request is when the next step begins."""
    scheduler = driver.scheduler
    batch = driver.data.forward_input.batch if driver.data else None
    in_flight = batch and any(req.uid == uid for req in batch.reqs)
    waiting = [
        r for r in scheduler.prefill_manager.pending_list if r.uid == uid
    ]
    if any(getattr(msg, "uid", None) == uid for msg in scheduler.inbox):
        return "sent"
    if uid in driver.ended:
        return "finished, in flight" if in_flight else "finished"
    if waiting and waiting[0].chunked_req:
        return "chunk in flight" if in_flight else "between chunks"
    if waiting:
        return "queued"
    if in_flight:
        return f"{batch.phase} in flight"
    return "decoding"


ALWAYS = {"sent", "queued", "between chunks", "finished"}
IN_FLIGHT = {
    "chunk in flight",
    "prefill in flight",
    "decode in flight",
    "finished, in flight",
}
MOMENTS = {True: ALWAYS | IN_FLIGHT, False: ALWAYS | {"decoding"}}


@pytest.mark.parametrize(
    ("overlap", "late", "page_size"),
    [(True, False, 1), (True, True, 4), (True, True, 16), (False, False, 4)],
)
def test_abort_at_every_moment(overlap, late, page_size):
    # The one to abort waits for a row; then its prompt comes in chunks, beside a
    # neighbour that decodes.
    end, expected = cut(LONG, 4)
    pages = 1024 // page_size
    driver = start(
        late=late,
        overlap=overlap,
        page_size=page_size,
        pages=pages,
        ends=[end],
        max_extend_tokens=len(LONG) // 3 + 1,
        max_running_req=2,
    )
    seen, uid = Counter(), 0
    for turns in range(30):
        first, other, victim = uid, uid + 1, uid + 2
        uid += 3
        driver.submit(first, SHORT, max_tokens=2)
        driver.submit(other, NEAR, max_tokens=13)
        driver.submit(victim, LONG, max_tokens=30, ignore_eos=False)
        for _ in range(turns):
            driver.step()
        seen[moment(driver, victim)] += 1
        before = list(driver.answers[victim])
        driver.abort(victim)
        driver.abort(victim)
        driver.run()
        driver.abort(victim)
        driver.run()
        assert driver.answers[victim] == before, "an aborted request spoke"
        assert before == expected[: len(before)]
        driver.assert_parity(first, length=2)
        driver.assert_parity(other, length=13)
        driver.assert_every_page()
        if seen["finished"]:
            break
    assert MOMENTS[overlap] <= set(seen), seen


def test_an_abort_of_what_never_was_does_nothing():
    driver = start()
    driver.scheduler.inbox += [AbortBackendMsg(7), AbortBackendMsg(-1)]
    driver.run()
    driver.submit(7, NEAR, max_tokens=3)
    driver.run()
    driver.assert_parity(length=3)
    driver.assert_every_page()


@pytest.mark.parametrize("where", ["chunk", "decode"])
def test_a_request_that_fails_in_flight_fails_alone_and_once(where):
    driver = start(late=True, page_size=4, max_extend_tokens=len(LONG) // 3)
    driver.submit(1, SHORT, max_tokens=6)
    driver.submit(2, LONG, max_tokens=6)
    driver.submit(3, FAR, max_tokens=6)
    # The next chunk is in flight when the failed one is read; so is a decode.
    poison(driver, 2, len(LONG) // 2 if where == "chunk" else len(LONG) + 2)
    driver.run()
    assert driver.ended[2].finish_reason == "error"
    assert "not finite" in driver.ended[2].error
    assert len(driver.answers[2]) == (0 if where == "chunk" else 2)
    driver.assert_parity(1, 3, length=6)
    driver.assert_every_page()


def test_a_number_may_come_again_while_its_first_request_is_ending():
    end, expected = cut(NEAR, 4)
    driver = start(late=True, ends=[end], max_running_req=2)
    driver.submit(1, NEAR, max_tokens=30, ignore_eos=False)
    while 1 not in driver.ended:
        driver.step()
    assert driver.answers[1] == expected
    assert driver.data, "its void step is to be in flight"
    del driver.ended[1]
    driver.submit(1, FAR, max_tokens=6)
    driver.run()
    driver.assert_parity(1, length=6)
    driver.assert_every_page()


def test_a_number_in_flight_is_taken_though_no_list_has_it():
    driver = start()
    driver.submit(1, NEAR, max_tokens=2)
    while not (driver.data and driver.data.forward_input.last_steps == [True]):
        driver.step()
    assert not driver.scheduler.has_work
    kept = list(driver.answers[1])
    driver.submit(1, FAR, max_tokens=5)
    driver.prompts[1], driver.answers[1] = NEAR, kept
    driver.run()
    driver.assert_parity(1, length=2)


def test_what_a_void_step_that_failed_computed_is_not_reused():
    end, _ = cut(NEAR, 6)
    driver = start(late=True, ends=[end])
    driver.submit(1, NEAR, max_tokens=30, ignore_eos=False)
    while 1 not in driver.ended:
        driver.step()
    before = driver.scheduler.cache_manager.prefix_cache.size_info.total_size
    sampler = driver.scheduler.engine.sampler
    sample = sampler.sample
    sampler.sample = lambda logits, args: sample(logits * float("nan"), args)
    driver.run()
    after = driver.scheduler.cache_manager.prefix_cache.size_info.total_size
    assert after == before
    assert driver.ended[1].finish_reason == "stop"
    driver.assert_every_page()


# All of part 2, with overlap and without.

MATRIX = [
    (page, cache, overlap, late, budget)
    for (page, cache), (overlap, late, budget) in product(
        product((1, 4, 16), ("radix", "naive")),
        [(True, True, 7), (True, False, 8192), (False, False, 50)],
    )
]


@pytest.mark.parity
@pytest.mark.parametrize(("page", "cache", "overlap", "late", "budget"), MATRIX)
def test_parity(page, cache, overlap, late, budget):
    chosen = PROMPTS[::2]
    driver = start(
        late=late,
        overlap=overlap,
        page_size=page,
        pages=-(-640 // page),
        cache_type=cache,
        max_extend_tokens=budget,
        max_running_req=3,
    )
    for again in (
        0,
        100,
    ):  # the second time with what the first left in the cache
        for uid, prompt in enumerate(chosen, again):
            driver.submit(uid, prompt, max_tokens=6)
        driver.run()
    driver.assert_parity(length=6)
    driver.assert_every_page()


def test_overlap_is_on_unless_asked():
    assert Driver(FOLDER).scheduler.config.overlap


def test_the_late_device_is_late():
    stream = LateStream()
    done = []
    stream.todo.append(lambda: done.append(1))
    assert not done
    stream.synchronize()
    assert done == [1]


def test_what_an_end_token_left_is_reused():
    end, expected = cut(NEAR, 6)
    driver = start(late=True, ends=[end])
    driver.submit(1, NEAR, max_tokens=30, ignore_eos=False)
    driver.run()
    longer = NEAR + expected + [1, 2, 3]
    driver.submit(2, longer, max_tokens=6)
    driver.run()
    computed = driver.steps[-6].tokens[2]
    # All but the end token itself and the three behind it.
    assert computed == 4
    driver.assert_parity(2, length=6)


def test_reset_forgets_everything():
    driver = start()
    driver.submit(1, NEAR, max_tokens=8)
    driver.submit(2, LONG, max_tokens=8)
    for _ in range(3):
        driver.step()
    scheduler: Scheduler = driver.scheduler
    scheduler._reset()
    driver.data = None
    assert not scheduler.has_work
    driver.assert_every_page()
    driver.submit(3, LONG, max_tokens=4)
    driver.run()
    driver.assert_parity(3, length=4)


def test_reset_waits_for_the_device():
    driver = start(late=True)
    driver.submit(1, NEAR, max_tokens=8)
    driver.step()
    assert driver.stream.todo
    with torch.inference_mode():
        driver.scheduler._reset()
    assert not driver.stream.todo
