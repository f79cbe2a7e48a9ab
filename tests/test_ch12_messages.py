"""Messages: what goes into one comes out of it, and nothing else does."""

import marshal
import pickle
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

import minisgl.utils
from minisgl import message as m
from minisgl.message.utils import deserialize_type, serialize_type
from minisgl.sampling_params import SamplingParams
from minisgl.utils.mp import ZmqPullQueue, ZmqPushQueue
from tests.driver import Driver, solo
from tests.messages import ALL, BASES, DRAWN, PROMPT, assert_same
from tests.parity import assert_parity, model_under_test, prompts

ROOT = Path(minisgl.utils.__file__).parents[2]
EVERY_MESSAGE = pytest.mark.parametrize(
    ("base", "msg"), ALL, ids=[type(msg).__name__ for _, msg in ALL]
)


@dataclass
class Box:
    """A message that holds anything."""

    value: Any


def through_bytes(base: type, msg: Any) -> Any:
    return base.decoder(msgpack.unpackb(msgpack.packb(base.encoder(msg))))


def boxed(value: Any) -> Any:
    """What becomes of a value in a message."""
    raw = msgpack.packb(serialize_type(Box(value)))
    return deserialize_type({"Box": Box}, msgpack.unpackb(raw)).value


@EVERY_MESSAGE
def test_every_message_comes_back_as_it_was(base, msg):
    assert_same(through_bytes(base, msg), msg)


@pytest.mark.until("ch15", "its messages are tried in test_ch15_messages.py")
def test_every_class_of_messages_is_among_them():
    classes = {getattr(m, name) for name in m.__all__}
    assert classes - {type(msg) for _, msg in ALL} == {*BASES}


@EVERY_MESSAGE
def test_nothing_is_pickled(base, msg, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pickled")

    for module in (pickle, marshal):
        for name in ("dump", "dumps", "load", "loads"):
            monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(torch.Tensor, "__reduce_ex__", refuse)
    through_bytes(base, msg)


def test_a_message_is_what_the_page_shows():
    assert m.AbortMsg.encoder(m.AbortMsg(7)) == {
        "__type__": "AbortMsg",
        "uid": 7,
    }
    content = m.UserMsg(7, PROMPT, SamplingParams()).encoder()
    raw = PROMPT.numpy().tobytes()
    assert content["input_ids"] == {"__array__": ["<i4", [3], raw]}
    assert content["sampling_params"]["__type__"] == "SamplingParams"


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, -(2**63), 2**64 - 1, 0.1, -0.0, float("inf"),
        "", "é你🎉\n\0", b"", b"\xff\0", [], {}, [[[]], [None, 1.5, "x"]],
        {"a": {"b": [1, {"": b"c"}]}}, "x" * 3_000_000, {"n": Box([Box(1)])},
    ],
    ids=lambda value: repr(value)[:12],
)  # fmt: skip
def test_plain_values_arrive(value):
    assert_same(boxed(value), value)


def test_nan_arrives_and_a_tuple_is_a_list():
    assert np.isnan(boxed(float("nan")))
    assert boxed((1, (2, "x"))) == [1, [2, "x"]]


@pytest.mark.parametrize(
    "number", [np.int32(5), np.float32(0.5), np.bool_(True)]
)
def test_a_number_of_numpy_arrives_as_a_number(number):
    got = boxed(number)
    assert got == number and type(got) in (int, float, bool)


TENSORS = {
    "int32": PROMPT,
    "int64": torch.tensor([2**62, -1]),
    "float32": torch.tensor([0.1, float("inf"), -0.0]),
    "float64": torch.tensor([[0.1], [0.2]], dtype=torch.float64),
    "float16": torch.tensor([0.1], dtype=torch.float16),
    "bool": torch.tensor([True, False]),
    "uint8": torch.arange(256).to(torch.uint8),
    "empty": torch.empty(0, dtype=torch.int32),
    "empty rows": torch.empty(3, 0, 2),
    "one number": torch.tensor(7),
    "every second": torch.arange(10)[1::2],
    "transposed": torch.arange(6).view(2, 3).t(),
    "megabytes": torch.arange(1_000_000),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_arrive(name):
    tensor = TENSORS[name]
    got = boxed(tensor)
    assert_same(got, tensor)
    assert_same(boxed(tensor.numpy()), tensor)
    got.fill_(1)  # it may be written to, and is nobody else's
    assert_same(boxed(tensor), tensor)


@pytest.mark.parametrize(
    "value",
    [
        object(), {1, 2}, int, Box, 1j, {1: "a"}, {b"a": 1}, lambda: 1, range(3),
        np.array([object()]), np.array(["text"]), np.datetime64("2026-01-01"),
        torch.zeros(2, dtype=torch.bfloat16), [{"deep": [{3}]}],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_anything_else_is_refused_before_it_leaves(value):
    with pytest.raises(TypeError):
        serialize_type(Box(value))


def test_the_refusal_names_the_type():
    with pytest.raises(TypeError, match="a set cannot be put into a message"):
        serialize_type(Box({1}))
    with pytest.raises(
        TypeError, match="the key 1 of a dict in a message is no str"
    ):
        serialize_type(Box({1: 2}))


@pytest.mark.parametrize("key", ["__type__", "__array__"])
def test_a_clients_dict_cannot_turn_into_a_message(key):
    turn = {"role": "user", "content": "hi", key: "ExitMsg"}
    with pytest.raises(ValueError, match=f"may not have the key '{key}'"):
        m.BaseTokenizerMsg.encoder(m.TokenizeMsg(1, [turn], SamplingParams()))


def tampered(**changes: Any) -> dict[str, Any]:
    """The dict of a UserMsg whose sampling parameters were changed on the way."""
    content = m.UserMsg(1, PROMPT, SamplingParams()).encoder()
    content["sampling_params"] |= changes
    return content


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"top_p": 1.5}, "top_p must be"),
        ({"top_p": float("nan")}, "top_p must be a finite number"),
        ({"temperature": "1"}, "temperature must be a finite number"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"top_k": True}, "top_k must be an integer"),
        ({"seed": 2**63}, "seed must be"),
        ({"best_of": 2}, "no SamplingParams: .*best_of"),
    ],
)
def test_sampling_parameters_are_checked_on_arrival(changes, reason):
    assert_same(m.BaseBackendMsg.decoder(tampered()).uid, 1)
    with pytest.raises(ValueError, match=reason):
        m.BaseBackendMsg.decoder(tampered(**changes))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([], "a list is no message"),
        ("ExitMsg", "a str is no message"),
        (None, "a NoneType is no message"),
        ({}, "no message is called None"),
        ({"__type__": ["ExitMsg"]}, r"no message is called \['ExitMsg'\]"),
        ({"__type__": "Exit"}, "no message is called 'Exit'"),
        ({"__type__": "UserReply"}, "no message is called 'UserReply'"),
        ({"__type__": "dataclass"}, "no message is called 'dataclass'"),
        ({"__type__": "annotations"}, "no message is called 'annotations'"),
        ({"__type__": "BACKEND"}, "no message is called 'BACKEND'"),
        ({"__type__": "AbortBackendMsg"}, "no AbortBackendMsg: .*'uid'"),
        ({"__type__": "ExitMsg", "code": 1}, "no ExitMsg: .*'code'"),
        ({"__type__": "ExitMsg", b"code": 1}, "no ExitMsg: .*string"),
        (
            {"__type__": "BatchBackendMsg", "data": [{"__type__": "int"}]},
            "no message is called 'int'",
        ),
    ],
)
def test_what_is_no_message_is_a_value_error(content, reason):
    with pytest.raises(ValueError, match=reason):
        m.BaseBackendMsg.decoder(content)


@pytest.mark.parametrize(
    "array",
    [
        None, 1, [], ["<i4", [1]], ["<i4", [1], b"1234", 0], ["<i4", [2], b"1234"],
        ["<i4", [1], b"12345"], ["<i4", [1], "1234"], ["<i4", ["a"], b"1234"],
        ["<i4", [-2], b"1234"], ["<i4", 2**70, b"1234"], ["i5", [1], b"1234"],
        ["O", [1], b"12345678"], ["<M8[s]", [1], b"12345678"], ["i4,i4", [1], b"8" * 8],
        ["<U1", [1], b"1234"], [{"no": 1}, [1], b"1234"], [">i4", [1], b"1234"],
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_array_is_a_value_error(array):
    content = {"__type__": "Box", "value": {"__array__": array}}
    with pytest.raises(ValueError, match="no array: "):
        deserialize_type({"Box": Box}, content)


def test_a_decoder_leaves_its_dict_alone():
    content = tampered()
    kept = msgpack.packb(content)
    m.BaseBackendMsg.decoder(content)
    assert msgpack.packb(content) == kept


@pytest.fixture
def queue(tmp_path_factory):
    pull = ZmqPullQueue(
        f"ipc://{tmp_path_factory.mktemp('q')}/a",
        True,
        m.BaseBackendMsg.decoder,
    )
    yield pull
    pull.stop()


def test_damaged_bytes_are_a_message_or_a_value_error(queue):
    rng, refused = random.Random(0), 0
    whole = msgpack.packb(m.UserMsg(1, PROMPT, DRAWN).encoder())
    assert_same(queue.decode(whole), m.UserMsg(1, PROMPT, DRAWN))
    for _ in range(1000):
        raw = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        cut = rng.choice([len(raw), rng.randrange(len(raw))])
        try:
            queue.decode(bytes(raw[:cut]))
        except ValueError as error:
            assert str(error).startswith(f"{cut} bytes are refused: ")
            refused += 1
    assert refused > 500
    deep = (
        b"\x82\xa8__type__\xafAbortBackendMsg\xa3uid" + b"\x91" * 1000 + b"\1"
    )
    for raw in (
        b"",
        b"\xc1",
        b"\x91" * 5000,
        deep,
        whole + b"\0",
        b"\x81\x01\x02",
    ):
        with pytest.raises(
            ValueError, match=f"{len(raw)} bytes are refused: ."
        ):
            queue.decode(raw)


LIGHT = """
import sys
sys.path.insert(0, sys.argv[1])
import msgpack, numpy
from minisgl import message, utils
from minisgl.sampling_params import SamplingParams
from minisgl.utils import ZmqPushQueue, div_ceil, mp, registry

ids = numpy.arange(3, dtype=numpy.int32)
raw = msgpack.packb(message.UserMsg(1, ids, SamplingParams()).encoder())
ask, base = message.TokenizeMsg(1, "x", SamplingParams()), message.BaseTokenizerMsg
assert base.decoder(base.encoder(ask)) == ask
assert not {"torch", "transformers"} & set(sys.modules), "too much is loaded"
message.BaseBackendMsg.decoder(msgpack.unpackb(raw))
assert "torch" in sys.modules and "transformers" not in sys.modules
"""


def test_only_a_tensor_that_arrives_loads_torch():
    serialize_type(Box(1))
    command = [sys.executable, "-c", LIGHT, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_all_that_utils_lists_is_there():
    for name in minisgl.utils.__all__:
        assert getattr(minisgl.utils, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'div_floor'"):
        _ = minisgl.utils.div_floor


@pytest.fixture(scope="module")
def folder():
    return model_under_test("qwen3-tiny")


@pytest.mark.parity
@pytest.mark.parametrize("page_size", [1, 16])
def test_parity_when_requests_and_tokens_travel_as_bytes(
    folder, page_size, tmp_path_factory
):
    base = f"ipc://{tmp_path_factory.mktemp('q')}/"
    driver = Driver(folder, overlap=True, page_size=page_size, pages=512)
    inbox = ZmqPullQueue(base + "in", True, m.BaseBackendMsg.decoder)
    client = ZmqPushQueue(base + "in", False, m.BaseBackendMsg.encoder)
    outbox = ZmqPushQueue(base + "out", False, m.BaseTokenizerMsg.encoder)
    tokens = ZmqPullQueue(base + "out", True, m.BaseTokenizerMsg.decoder)
    for uid, prompt in enumerate(prompts(folder)):
        driver.submit(uid, prompt, 24)
    client.put(m.BatchBackendMsg(driver.scheduler.inbox))
    driver.scheduler.inbox = inbox.get().data
    while not driver.idle:
        outbox.put(m.BatchTokenizerMsg(driver.step()))
    answers = {uid: [] for uid in driver.answers}
    ends = {}
    while len(ends) < len(answers):
        for msg in tokens.get().data:
            assert msg.uid not in ends
            answers[msg.uid].append(msg.next_token)
            if msg.finished:
                ends[msg.uid] = msg.finish_reason
    assert {*ends.values()} == {"length"}
    for uid, prompt in enumerate(prompts(folder)):
        assert_parity(answers[uid], solo(folder, prompt, 24))
    driver.assert_clean()
    for queue in (client, inbox, outbox, tokens):
        queue.stop()


def test_a_seed_that_travelled_draws_the_same(folder):
    def draw(params: SamplingParams) -> list[int]:
        driver = Driver(folder, overlap=True)
        ids = torch.tensor(prompts(folder)[0], dtype=torch.int32)
        driver.submit(0, ids.tolist(), 1)
        driver.scheduler.inbox = [m.UserMsg(0, ids, params)]
        return driver.run()[0]

    params = SamplingParams(0.9, 50, 0.95, True, 12, 0.01, seed=123456789)
    msg = through_bytes(m.BaseBackendMsg, m.UserMsg(0, PROMPT, params))
    assert draw(msg.sampling_params) == draw(params)
