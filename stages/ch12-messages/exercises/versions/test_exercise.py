"""Versions: old and new processes understand one another, or say why not."""

from dataclasses import dataclass, field, make_dataclass

import msgpack
import pytest
import torch

from minisgl.message.versioned import decode, encode


@dataclass
class Ask:
    """The message as the older process knows it."""

    uid: int
    text: str


@dataclass
class Many:
    data: list


def newer(name, *extra):
    """The class of the same name in the newer process."""
    old = {"Ask": Ask, "Many": Many}[name]
    return make_dataclass(name, extra, bases=(old,))


NewAsk = newer("Ask", ("priority", int, field(default=5)))
NewMany = newer("Many", ("trace", dict, field(default_factory=dict)))
OLD = {"Ask": Ask, "Many": Many}
NEW = {"Ask": NewAsk, "Many": NewMany}


def send(msg, sender, classes, receiver):
    """Through real bytes."""
    raw = msgpack.packb(encode(msg, sender))
    return decode(classes, msgpack.unpackb(raw), receiver)


def test_the_version_is_part_of_the_message():
    data = encode(Ask(1, "x"), (3, 7))
    assert data == {
        "__version__": [3, 7],
        "__type__": "Ask",
        "uid": 1,
        "text": "x",
    }


@pytest.mark.parametrize("version", [(1, 0), (1, 4), (2, 0)])
def test_equal_versions(version):
    assert send(Ask(1, "x"), version, OLD, version) == Ask(1, "x")


def test_a_newer_sender():
    assert send(NewAsk(1, "x", 9), (1, 3), OLD, (1, 2)) == Ask(1, "x")


def test_an_older_sender():
    got = send(Ask(1, "x"), (1, 2), NEW, (1, 3))
    assert got == NewAsk(1, "x", 5)


def test_messages_inside_messages():
    many = NewMany([NewAsk(1, "a", 9), NewMany([NewAsk(2, "b", 1)])], {"k": 1})
    got = send(many, (1, 3), OLD, (1, 2))
    assert got == Many([Ask(1, "a"), Many([Ask(2, "b")])])


def test_other_dicts_and_arrays_are_left_alone():
    many = NewMany([{"priority": 3}, torch.tensor([1, 2])], {"k": 1})
    got = send(many, (1, 3), OLD, (1, 2))
    assert got.data[0] == {"priority": 3}
    assert torch.equal(got.data[1], torch.tensor([1, 2]))


@pytest.mark.parametrize("sender", [(1, 3), (1, 2)])
def test_an_unknown_field_of_a_sender_that_is_not_newer(sender):
    with pytest.raises(ValueError, match="priority"):
        send(NewAsk(1, "x", 9), sender, OLD, (1, 3))


@pytest.mark.parametrize("sender", [(2, 0), (0, 9)])
def test_another_major_version(sender):
    with pytest.raises(
        ValueError, match=r"version \d\.\d cannot be read .* 1\.2"
    ):
        send(Ask(1, "x"), sender, OLD, (1, 2))


@pytest.mark.parametrize(
    "version", [None, 1, [1], [1, 2, 3], ["1", "2"], {"major": 1}]
)
def test_what_is_no_version(version):
    data = encode(Ask(1, "x")) | {"__version__": version}
    with pytest.raises(ValueError, match="no version"):
        decode(OLD, data)


def test_no_version_at_all():
    data = encode(Ask(1, "x"))
    del data["__version__"]
    with pytest.raises(ValueError, match="no version"):
        decode(OLD, data)
    with pytest.raises(ValueError, match="no message"):
        decode(OLD, [1])


def test_a_message_that_only_the_sender_knows():
    New = make_dataclass("New", [("uid", int)])
    with pytest.raises(ValueError, match="no message is called 'New'"):
        send(New(1), (1, 3), OLD, (1, 2))


def test_the_data_is_not_changed():
    data = encode(NewAsk(1, "x", 9), (1, 3))
    before = dict(data)
    decode(OLD, data, (1, 2))
    assert data == before
