"""Waiting with a limit: in time, in order, and not a moment longer than needed."""

import signal
import threading
import time

import pytest

from minisgl.message import AbortBackendMsg, BaseBackendMsg
from minisgl.utils import ZmqPushQueue
from minisgl.utils.timed import TimedPullQueue


@pytest.fixture(autouse=True)
def no_hang():
    """A queue that waits for ever fails its test instead."""

    def late(*args):
        raise AssertionError("the test took more than 10 s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def ends(tmp_path_factory):
    """Both ends of a queue."""
    addr = f"ipc://{tmp_path_factory.mktemp('q')}/a"
    pull = TimedPullQueue(addr, True, BaseBackendMsg.decoder)
    push = ZmqPushQueue(addr, False, BaseBackendMsg.encoder)
    yield push, pull
    push.stop()
    pull.stop()


def put(push, *uids):
    for uid in uids:
        push.put(AbortBackendMsg(uid))


def later(seconds, action, *args):
    timer = threading.Timer(seconds, action, args)
    timer.start()
    return timer


def uids(messages):
    return [msg.uid for msg in messages]


def timed(action, *args):
    begun = time.monotonic()
    result = action(*args)
    return result, time.monotonic() - begun


def test_a_message_that_is_there(ends):
    push, pull = ends
    put(push, 1, 2)
    assert uids([pull.get_within(5), pull.get_within(5)]) == [1, 2]


def test_none_comes(ends):
    _, pull = ends
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        pull.get_within(0.2)
    assert 0.19 < time.monotonic() - begun < 1.5
    with pytest.raises(TimeoutError):
        pull.get_within(0)


def test_one_that_comes_later_is_taken_at_once(ends):
    push, pull = ends
    timer = later(0.1, put, push, 7)
    got, seconds = timed(pull.get_within, 8)
    timer.join()
    assert got.uid == 7
    assert seconds < 4


def test_what_is_no_message_is_refused_and_the_next_one_comes(ends):
    push, pull = ends
    push.put_raw(b"\xc1")
    put(push, 3)
    with pytest.raises(ValueError, match="refused"):
        pull.get_within(5)
    assert pull.get_within(5).uid == 3


def test_gather_takes_what_is_there(ends):
    push, pull = ends
    put(push, 1, 2, 3)
    assert uids(pull.gather(10, 0.3)) == [1, 2, 3]


def test_gather_stops_at_the_limit_without_waiting(ends):
    push, pull = ends
    put(push, 1, 2, 3, 4)
    got, seconds = timed(pull.gather, 3, 9)
    assert uids(got) == [1, 2, 3]
    assert seconds < 5
    assert uids(pull.gather(1, 9)) == [4]


def test_gather_waits_for_the_first_longer_than_its_window(ends):
    push, pull = ends
    timer = later(0.3, put, push, 1, 2)
    assert uids(pull.gather(10, 0.2)) == [1, 2]
    timer.join()


def test_the_window_opens_once(ends):
    push, pull = ends
    put(push, 0)
    stop = threading.Event()

    def drip():
        uid = 1
        while not stop.wait(0.1):
            put(push, uid)
            uid += 1

    thread = threading.Thread(target=drip)
    thread.start()
    got, seconds = timed(pull.gather, 1000, 0.5)
    stop.set()
    thread.join()
    assert 0.45 < seconds < 4
    assert uids(got) == [*range(len(got))]
    assert len(got) > 1


def test_gather_passes_over_what_is_no_message(ends):
    push, pull = ends
    push.put_raw(b"\xc1")
    put(push, 1)
    push.put_raw(b"junk")
    put(push, 2)
    assert uids(pull.gather(2, 5)) == [1, 2]
