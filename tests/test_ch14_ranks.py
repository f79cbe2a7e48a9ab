"""Chapter 14: several ranks see the same messages in the same step."""

import json
import random
import time
from dataclasses import replace

import msgpack
import pytest

from minisgl.distributed import DistributedInfo
from minisgl.message import AbortBackendMsg, BatchBackendMsg, ExitMsg
from minisgl.scheduler.addresses import make_socket_dir, remove_socket_dir
from tests.parity import model_under_test
from tests.ranks import as_text, follow
from tests.serving import Child, Client, config_for, user_msg

FOLDER = model_under_test("qwen3-tiny")


class Ranks:
    """Two processes that only receive, and a client that talks to rank 0."""

    def __init__(self, folder, own_group: bool, late: float) -> None:
        self.config = config_for(FOLDER, rank=0, ranks=2)
        make_socket_dir(self.config)
        self.client = Client(self.config)
        self.outs = [folder / f"{rank}.json" for rank in (0, 1)]
        configs = [
            replace(self.config, tp_info=DistributedInfo(rank, 2))
            for rank in (0, 1)
        ]
        self.children = [
            Child(
                folder / f"{rank}.log",
                follow,
                config,
                own_group,
                late * rank,
                str(out),
            )
            for rank, (config, out) in enumerate(
                zip(configs, self.outs, strict=True)
            )
        ]

    def wait(self, ready, what: str) -> None:
        """Until `ready()`; fails at once when a rank has failed."""

        def either() -> bool:
            for child in self.children:
                if child.process.exitcode:
                    child.wait_for(ready, what)
            return ready()

        self.children[0].wait_for(either, what)

    def noted(self, replies: int) -> list[dict]:
        """What the two have written, once they have ended and replied so often."""

        def done() -> bool:
            self.client.take_all()
            ended = all(out.exists() for out in self.outs)
            return ended and len(self.client.messages) >= replies

        self.wait(done, f"both ends and {replies} replies")
        assert [child.end() for child in self.children] == [0, 0]
        return [json.loads(out.read_text()) for out in self.outs]

    def stop(self) -> None:
        for child in self.children:
            child.kill()
        self.client.stop()
        remove_socket_dir(self.config)
        self.config.socket_dir.with_suffix(".store").unlink(missing_ok=True)


@pytest.fixture
def ranks(tmp_path):
    made = []

    def start(own_group: bool, late: float) -> Ranks:
        made.append(Ranks(tmp_path, own_group, late))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def some_messages(rng: random.Random, count: int):
    """Random messages; with each, what a rank makes of it, None for nothing."""
    for uid in range(count):
        kind = rng.randrange(5)
        if kind == 0:
            raw = rng.choice(
                [b"", b"\xc1", msgpack.packb({"__type__": "UserReply"})]
            )
            yield raw, None
            continue
        if kind == 1:
            msg = user_msg(
                uid, [rng.randrange(500) for _ in range(20)], 1 + uid % 9
            )
        elif kind == 2:
            msg = BatchBackendMsg(
                [AbortBackendMsg(uid), AbortBackendMsg(uid + 1)]
            )
        else:
            msg = AbortBackendMsg(uid)
        yield msgpack.packb(msg.encoder()), as_text(msg)


def test_both_ranks_see_the_same_messages_in_the_same_step(ranks):
    pair, rng = ranks(own_group=True, late=0.0), random.Random(0)
    first = user_msg(1000, [1], 1)
    pair.client.send(first)
    pair.wait(lambda: not pair.client.replies.empty(), "a reply")
    expected, asked = [as_text(first)], 1
    for raw, text in some_messages(rng, 300):
        pair.client.requests.put_raw(raw)
        expected += [text] * (text is not None)
        asked += text is not None and "'UserMsg'" in text
        time.sleep(rng.choice([0, 0, 0, 0.001, 0.01]))
    last = [user_msg(1001 + i, [1], 9) for i in range(30)]
    for msg in last:
        pair.client.send(msg)
    pair.wait(lambda: not pair.client.replies.empty(), "more replies")
    time.sleep(0.5)  # the ranks wait for messages again
    pair.client.send(ExitMsg())
    zero, one = pair.noted(asked + len(last))
    assert zero["steps"] == one["steps"]
    flat = [text for step in zero["steps"] for text in step]
    expected += [as_text(msg) for msg in (*last, ExitMsg())]
    assert flat == expected
    sizes = [len(step) for step in zero["steps"]]
    assert len(sizes) > 10 and {0, 1} < {*sizes}
    # Rank 1 would have sent its number.
    assert len(pair.client.answers) == asked + len(last) > 50
    assert {*map(tuple, pair.client.answers.values())} == {(0,)}
    assert [*pair.config.socket_dir.iterdir()] == []


def test_a_late_rank_loses_nothing(ranks):
    pair = ranks(own_group=False, late=0.7)
    messages = [
        user_msg(1, [1, 2, 3], 2),
        AbortBackendMsg(1),
        AbortBackendMsg(2),
    ]
    for msg in messages:
        pair.client.send(msg)
    pair.wait(lambda: not pair.client.replies.empty(), "a reply")
    time.sleep(0.3)  # now both wait for the next message
    pair.client.send(AbortBackendMsg(3))
    time.sleep(0.3)
    pair.client.send(ExitMsg())
    zero, one = pair.noted(1)
    assert zero["steps"] == one["steps"]
    flat = [text for step in one["steps"] for text in step]
    everything = [*messages, AbortBackendMsg(3), ExitMsg()]
    assert flat == [as_text(msg) for msg in everything]
    # The first message was there before rank 0 was; rank 1 may have had to wait.
    assert zero["idle"] == 2 and one["idle"] in (2, 3)
    assert zero["left"] >= one["came"] > zero["came"] + 0.3
