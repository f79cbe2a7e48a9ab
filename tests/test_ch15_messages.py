"""Chapter 15: its messages and fields cross a queue, and are checked on arrival."""

from dataclasses import fields

import msgpack
import pytest

from minisgl import message as m
from minisgl.sampling_params import SamplingParams
from tests.messages import ALL, BASES, PROMPT, assert_same

ASKED = SamplingParams(
    repetition_penalty=1.2,
    frequency_penalty=-2,
    presence_penalty=2.0,
    logit_bias={"5": -100, "70": 1.5},
    stop_token_ids=[1, 2],
    logprobs=20,
)
TOLD = m.TokenLogprob(-0.25, [3, 1], [-0.25, float("-inf")])
ENTRY = {"token": "\ufffd", "logprob": -0.25, "bytes": [240, 159]}
NEW = [
    (m.BaseBackendMsg, m.StatusBackendMsg(2**63)),
    (m.BaseBackendMsg, m.UserMsg(1, PROMPT, ASKED)),
    (m.BaseTokenizerMsg, m.TokenizeMsg(1, "hi", ASKED)),
    (m.BaseTokenizerMsg, m.StatusMsg(1)),
    (m.BaseTokenizerMsg, m.StatusResultMsg(1, {"running": 0, "waiting": 2})),
    (
        m.BaseTokenizerMsg,
        m.DetokenizeMsg(1, 5, False, None, None, 30, 16, TOLD),
    ),
    (m.BaseFrontendMsg, m.StatusReply(1, {"running": 0})),
    (
        m.BaseFrontendMsg,
        m.UserReply(
            1, "a", False, None, None, 1, 30, 0,
            [{**ENTRY, "top_logprobs": [ENTRY]}],
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("base", "msg"), NEW)
def test_new_messages_and_fields_come_back_as_they_were(base, msg):
    raw = msgpack.packb(base.encoder(msg))
    assert_same(base.decoder(msgpack.unpackb(raw)), msg)


def test_every_class_of_messages_is_tried():
    exported = [getattr(m, name) for name in m.__all__]
    classes = {one for one in exported if isinstance(one, type)}
    tried = {type(msg) for _, msg in [*ALL, *NEW]} | {type(TOLD)}
    assert classes - tried == {*BASES}


def test_what_a_reply_leaves_out_is_what_it_was_before():
    """Senders that know nothing of the new fields still work."""
    plain = m.DetokenizeMsg(1, 2, True, "stop")
    later = [f.name for f in fields(plain)][5:]
    assert [getattr(plain, name) for name in later] == [None] * len(later)
    content = m.BaseTokenizerMsg.encoder(plain)
    for name in later:
        del content[name]
    assert m.BaseTokenizerMsg.decoder(content) == plain
    assert m.UserReply(1, "", False).completion_tokens == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"logit_bias": {"x": 1.0}}, "logit_bias must"),
        ({"logit_bias": {"5": -101}}, "logit_bias of token 5 must"),
        ({"stop_token_ids": [None]}, "stop_token_ids must"),
        ({"logprobs": 21}, "logprobs must be at least 0 and at most 20"),
        ({"presence_penalty": 3}, "presence_penalty must"),
    ],
)
def test_c16_new_parameters_are_checked_on_arrival(changes, reason):
    content = m.UserMsg(1, PROMPT, ASKED).encoder()
    content["sampling_params"] |= changes
    with pytest.raises(ValueError, match=reason):
        m.BaseBackendMsg.decoder(content)


@pytest.mark.parametrize("key", ["__type__", "__array__"])
def test_a_bias_cannot_turn_into_a_message(key):
    with pytest.raises(ValueError, match="logit_bias must"):
        SamplingParams(logit_bias={key: 1.0})
