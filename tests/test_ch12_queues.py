"""Queues between processes: nothing lost, nothing out of order, no hang at the end."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgpack
import pytest
import zmq

import minisgl.utils
from minisgl.message import (
    AbortBackendMsg,
    AbortMsg,
    BaseBackendMsg,
    BaseFrontendMsg,
    BaseTokenizerMsg,
    BatchTokenizerMsg,
    DetokenizeMsg,
    ExitMsg,
    TokenizeMsg,
    UserReply,
)
from minisgl.sampling_params import SamplingParams
from minisgl.utils import (
    ZmqAsyncPullQueue,
    ZmqAsyncPushQueue,
    ZmqPubQueue,
    ZmqPullQueue,
    ZmqPushQueue,
    ZmqSubQueue,
)

ROOT = Path(minisgl.utils.__file__).parents[2]
PRELUDE = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
base = sys.argv[2]
from minisgl.message import *
from minisgl.utils.mp import *
backend = BaseBackendMsg.encoder, BaseBackendMsg.decoder
tokenizer = BaseTokenizerMsg.encoder, BaseTokenizerMsg.decoder
frontend = BaseFrontendMsg.encoder, BaseFrontendMsg.decoder
"""
LIGHT = """
assert not {"torch", "transformers"} & set(sys.modules), "too much is loaded"
"""
SECONDS = 20


@pytest.fixture(autouse=True)
def no_hang():
    """A queue that waits for ever fails its test instead."""

    def late(*args):
        raise TimeoutError(f"the test took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def base(tmp_path_factory):
    """What addresses begin with; short, for a socket's path has 107 bytes at most."""
    return f"ipc://{tmp_path_factory.mktemp('q')}/"


@pytest.fixture
def queue(base):
    """Makes queues for backend messages, and stops them all in the end."""
    made = []

    def make(kind, name="a", create=False, of=BaseBackendMsg):
        coder = of.decoder if hasattr(kind, "get") else of.encoder
        made.append(kind(base + name, create, coder))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def child(base):
    """Starts a process that runs some lines; none outlives the test."""
    children = []

    def start(lines):
        command = [
            sys.executable,
            "-c",
            PRELUDE + lines + LIGHT,
            str(ROOT),
            base,
        ]
        children.append(subprocess.Popen(command))
        return children[-1]

    yield start
    for one in children:
        one.kill()
        one.wait()


def assert_ends_well(process):
    """Its lines ran, and it has loaded nothing heavy; else its error is shown."""
    assert process.wait(10) == 0


def numbers(pull, count):
    return [pull.get().uid for _ in range(count)]


def test_messages_go_to_another_process_and_come_back(queue, child):
    ask = queue(ZmqPushQueue, "ask", of=BaseTokenizerMsg)
    say = queue(ZmqPullQueue, "say", create=True, of=BaseFrontendMsg)
    params = SamplingParams(0.5, seed=7)
    turns = [{"role": "user", "content": "你好 🎉"}]
    ask.put(TokenizeMsg(1, turns, params))
    ask.put(BatchTokenizerMsg([DetokenizeMsg(2, 5, True, "stop"), AbortMsg(3)]))
    process = child("""
ask = ZmqPullQueue(base + "ask", True, tokenizer[1])
say = ZmqPushQueue(base + "say", False, frontend[0])
for msg in (ask.get(), ask.get()):
    say.put(UserReply(0, repr(msg), True))
say.stop()
""")
    assert say.get().incremental_output == repr(TokenizeMsg(1, turns, params))
    assert "DetokenizeMsg(uid=2, next_token=5" in say.get().incremental_output
    assert_ends_well(process)


def test_all_that_was_sent_before_the_receiver_came_arrives_in_order(
    queue, child
):
    push, back = queue(ZmqPushQueue), queue(ZmqPullQueue, "b", create=True)
    for uid in range(3000):
        push.put(AbortBackendMsg(uid))
    process = child("""
pull = ZmqPullQueue(base + "a", True, backend[1])
push = ZmqPushQueue(base + "b", False, backend[0])
for _ in range(3000):
    push.put(pull.get())
push.stop()
""")
    assert numbers(back, 3000) == [*range(3000)]
    assert_ends_well(process)


@pytest.mark.parametrize("create", [True, False])
def test_either_side_may_create_the_address(queue, create):
    raw = msgpack.packb(AbortBackendMsg(5).encoder())
    push = queue(ZmqPushQueue, create=create)
    sender = threading.Thread(target=push.put_raw, args=(raw,))
    sender.start()
    sender.join(0.2)
    assert sender.is_alive() == create, (
        "only a creator waits for the first receiver"
    )
    pull = queue(ZmqPullQueue, create=not create)
    assert pull.get() == AbortBackendMsg(5)
    sender.join()


def test_each_pushers_messages_stay_in_order(queue):
    pull = queue(ZmqPullQueue, create=True)
    pushers = [queue(ZmqPushQueue) for _ in range(3)]
    for number in range(100):
        for i, push in enumerate(pushers):
            push.put(AbortBackendMsg(1000 * i + number))
    got = numbers(pull, 300)
    for i in range(3):
        assert [n for n in got if n // 1000 == i] == [
            *range(1000 * i, 1000 * i + 100)
        ]


def test_empty_says_whether_get_would_wait(queue):
    pull = queue(ZmqPullQueue, create=True)
    assert pull.empty() is True
    queue(ZmqPushQueue).put(ExitMsg())
    while pull.empty():
        time.sleep(0.01)
    assert pull.empty() is False
    assert pull.get() == ExitMsg() and pull.empty()


def test_a_message_of_megabytes(queue):
    pull = queue(ZmqPullQueue, "t", create=True, of=BaseFrontendMsg)
    push = queue(ZmqPushQueue, "t", of=BaseFrontendMsg)
    text = "né" * 3_000_000
    push.put(UserReply(1, text, True))
    assert pull.get().incremental_output == text


def test_raw_bytes_are_passed_on_unread(queue):
    first, push = queue(ZmqPullQueue, create=True), queue(ZmqPushQueue)
    second, relay = (
        queue(ZmqPullQueue, "b", create=True),
        queue(ZmqPushQueue, "b"),
    )
    push.put(AbortBackendMsg(3))
    raw = first.get_raw()
    assert raw == msgpack.packb(AbortBackendMsg(3).encoder())
    assert first.decode(raw) == AbortBackendMsg(3)
    relay.put_raw(raw)
    assert second.get() == AbortBackendMsg(3)


def test_after_bytes_that_are_no_message_the_next_one_comes(queue):
    pull, push = queue(ZmqPullQueue, create=True), queue(ZmqPushQueue)
    push.put_raw(b"\xc1")
    push.put_raw(msgpack.packb({"__type__": "UserReply"}))
    push.put(ExitMsg())
    with pytest.raises(ValueError, match="1 bytes are refused: FormatError"):
        pull.get()
    with pytest.raises(ValueError, match="no message is called 'UserReply'"):
        pull.get()
    assert pull.get() == ExitMsg()


def test_what_cannot_be_sent_is_refused_and_the_next_one_goes(queue):
    pull = queue(ZmqPullQueue, create=True, of=BaseTokenizerMsg)
    push = queue(ZmqPushQueue, of=BaseTokenizerMsg)
    deep = []
    for _ in range(2000):
        deep = [deep]
    for uid, text, reason in (
        (
            2**64,
            "",
            "this TokenizeMsg cannot be sent: Integer value out of range",
        ),
        (1, "half a pair: \ud83d", "surrogates not allowed"),
        (1, deep, "this TokenizeMsg cannot be sent: .*recursion"),
    ):
        with pytest.raises(ValueError, match=reason):
            push.put(TokenizeMsg(uid, text, SamplingParams()))
    with pytest.raises(TypeError, match="a set cannot be put"):
        push.put(TokenizeMsg(1, {1}, SamplingParams()))
    push.put(AbortMsg(2**64 - 1))
    assert pull.get() == AbortMsg(2**64 - 1)


def test_a_process_that_stops_its_queue_has_sent_everything(queue, child):
    push = queue(ZmqPushQueue, "go")
    push.put(ExitMsg())
    sender = child("""
ZmqPullQueue(base + "go", True, backend[1]).get()
push = ZmqPushQueue(base + "a", False, backend[0])
for uid in range(2000):
    push.put(BatchBackendMsg([AbortBackendMsg(uid)] * 50))
push.stop()
os._exit(0)
""")
    time.sleep(0.3)  # what it sends has nowhere to go yet
    pull = queue(ZmqPullQueue, create=True)
    got = [pull.get().data[-1].uid for _ in range(2000)]
    assert got == [*range(2000)]
    assert_ends_well(sender)


def test_stop_gives_up_after_a_second_when_nobody_receives(queue):
    push = queue(ZmqPushQueue)
    push.put(ExitMsg())
    begin = time.monotonic()
    push.stop()
    assert 0.5 < time.monotonic() - begin < 5
    push.stop()  # again: nothing


def test_a_receiver_stops_at_once_whatever_its_sender_did(base):
    pub = ZmqPubQueue(base + "a", True, BaseBackendMsg.encoder)
    subs = [
        ZmqSubQueue(base + "a", False, BaseBackendMsg.decoder) for _ in "ab"
    ]
    pub.wait_for_subscribers(2, timeout=10)
    pub.stop()
    begin = time.monotonic()
    for sub in subs:
        sub.stop()
    assert time.monotonic() - begin < 0.9


def test_queues_that_nobody_stopped_do_not_hang(queue, child):
    queue(ZmqPushQueue, "go").put(ExitMsg())
    process = child("""
import gc
ZmqPullQueue(base + "go", True, backend[1]).get()
def leave(i):
    kinds = ZmqPullQueue, ZmqSubQueue, ZmqAsyncPullQueue
    pull = [kind(base + str(i), False, backend[1]) for kind in kinds]
    push = ZmqPushQueue(base + "none", False, backend[0])
    push.put(ExitMsg())
    try:
        raise ValueError
    except ValueError as error:
        kept = error  # a cycle: error, its traceback, this frame
for i in range(5):
    leave(i)
gc.collect()
push = ZmqPushQueue(base + "none", False, backend[0])
push.put(ExitMsg())
""")
    assert_ends_well(process)


def test_an_address_is_free_again_after_stop(base):
    for _ in range(2):
        pull = ZmqPullQueue(base + "a", True, BaseBackendMsg.decoder)
        push = ZmqPushQueue(base + "a", False, BaseBackendMsg.encoder)
        push.put(ExitMsg())
        assert pull.get() == ExitMsg()
        push.stop()
        pull.stop()


def test_a_socket_file_that_a_killed_process_left_does_no_harm(
    queue, child, base
):
    queue(ZmqPushQueue, "go").put(ExitMsg())
    killed = child("""
pull = ZmqPullQueue(base + "a", True, backend[1])
ZmqPullQueue(base + "go", True, backend[1]).get()
os.kill(os.getpid(), 9)
""")
    killed.wait(10)
    assert os.path.exists(base.removeprefix("ipc://") + "a")
    pull, push = queue(ZmqPullQueue, create=True), queue(ZmqPushQueue)
    push.put(ExitMsg())
    assert pull.get() == ExitMsg()


def test_a_wrong_address_is_named_at_once(base, queue):
    with pytest.raises(
        zmq.ZMQError, match=r"longer than 107 characters|too long"
    ):
        queue(ZmqPullQueue, "x" * 120, create=True)
    with pytest.raises(zmq.ZMQError, match="/none/a"):
        queue(ZmqPullQueue, "none/a", create=True)


def test_asyncio_queues_talk_to_the_others(queue):
    async def talk():
        ask = queue(ZmqAsyncPushQueue)
        say = queue(ZmqAsyncPullQueue, "b", create=True)
        for uid in range(100):
            await ask.put(AbortBackendMsg(uid))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(say.get(), 0.05)
        pull, push = queue(ZmqPullQueue, create=True), queue(ZmqPushQueue, "b")
        for uid in numbers(pull, 100):
            push.put(AbortBackendMsg(uid))
        got = [(await say.get()).uid for _ in range(100)]
        with pytest.raises(ValueError, match="cannot be sent"):
            await ask.put(AbortBackendMsg(2**64))
        push.put_raw(b"")
        with pytest.raises(ValueError, match="0 bytes are refused"):
            await say.get()
        return got

    assert asyncio.run(talk()) == [*range(100)]


def subscriber(name):
    """Lines of a process that passes on every broadcast until an ExitMsg."""
    return f"""
sub = ZmqSubQueue(base + "all", False, backend[1])
push = ZmqPushQueue(base + "{name}", False, backend[0])
while not isinstance(msg := sub.get(), ExitMsg):
    push.put(msg)
push.stop()
"""


def test_fault5_late_subscribers_get_the_first_broadcast(queue, child):
    pub = queue(ZmqPubQueue, "all", create=True)
    seen = [queue(ZmqPullQueue, name, create=True) for name in "bcd"]
    children = [child(subscriber(name)) for name in "bcd"]
    pub.wait_for_subscribers(3, timeout=20)
    for uid in range(10):
        pub.put(AbortBackendMsg(uid))
    # If those were lost, a later one tells: nobody waits for what never comes.
    while any(pull.empty() for pull in seen):
        uid += 1
        pub.put(AbortBackendMsg(uid))
        time.sleep(0.01)
    pub.put(ExitMsg())
    firsts = [pull.get().uid for pull in seen]
    assert firsts == [0, 0, 0], (
        f"the first broadcast is lost: {firsts} came first"
    )
    for pull in seen:
        assert numbers(pull, 9) == [*range(1, 10)]
    for one in children:
        assert_ends_well(one)


def test_a_broadcast_may_be_bytes_that_came_from_a_queue(queue):
    pub = queue(ZmqPubQueue, create=True)
    subs = [queue(ZmqSubQueue) for _ in range(2)]
    pub.wait_for_subscribers(2, timeout=10)
    raw = msgpack.packb(AbortBackendMsg(9).encoder())
    pub.put_raw(raw)
    assert subs[0].get_raw() == raw
    assert subs[1].get() == AbortBackendMsg(9)
    assert subs[0].empty() and subs[1].empty()


def test_waiting_for_subscribers_ends_with_their_number(queue):
    pub = queue(ZmqPubQueue, create=True)
    pub.wait_for_subscribers(0, timeout=0)
    first = queue(ZmqSubQueue)
    pub.wait_for_subscribers(1, timeout=10)
    begin = time.monotonic()
    with pytest.raises(
        TimeoutError, match=r"^1 of 3 subscribers joined in 0\.3 s$"
    ):
        pub.wait_for_subscribers(3, timeout=0.3)
    assert 0.25 < time.monotonic() - begin < 5
    pub.put(ExitMsg())
    queue(ZmqSubQueue)
    queue(ZmqSubQueue)
    pub.wait_for_subscribers(3, timeout=10)
    pub.wait_for_subscribers(3, timeout=0)
    assert first.get() == ExitMsg()


def assert_leaves(pub, count):
    """One of `count` subscribers goes, within the seconds of a test."""
    with pytest.raises(
        TimeoutError, match=f"^{count - 1} of {count} subscribers"
    ):
        while True:
            pub.wait_for_subscribers(count, timeout=0)
            time.sleep(0.01)


def test_a_subscriber_that_left_does_not_count(queue):
    pub = queue(ZmqPubQueue, create=True)
    gone, stays = queue(ZmqSubQueue), queue(ZmqSubQueue)
    pub.wait_for_subscribers(2, timeout=10)
    gone.stop()
    assert_leaves(pub, 2)
    new = queue(ZmqSubQueue)
    pub.wait_for_subscribers(2, timeout=10)
    pub.put(ExitMsg())
    assert stays.get() == new.get() == ExitMsg()


def test_a_subscriber_that_was_killed_does_not_count(queue, child):
    pub = queue(ZmqPubQueue, "all", create=True)
    killed = child(subscriber("b"))
    pub.wait_for_subscribers(1, timeout=20)
    killed.kill()
    assert_leaves(pub, 1)
    process = child(subscriber("c"))
    seen = queue(ZmqPullQueue, "c", create=True)
    pub.wait_for_subscribers(1, timeout=20)
    pub.put(AbortBackendMsg(1))
    pub.put(ExitMsg())
    assert seen.get() == AbortBackendMsg(1)
    assert_ends_well(process)
