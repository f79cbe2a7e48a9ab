"""One message of every kind, for tests of what carries them."""

from dataclasses import fields, is_dataclass
from typing import Any

import torch

from minisgl import message as m
from minisgl.sampling_params import SamplingParams

DRAWN = SamplingParams(0.7, 40, 0.9, True, 77, 0.05, seed=-(2**63))
CHAT = [
    {"role": "system", "content": ""},
    {"role": "user", "content": "你好 🎉\0"},
]
PROMPT = torch.tensor([3, 1, 4], dtype=torch.int32)
BACKEND = [
    m.BatchBackendMsg([]),
    m.ExitMsg(),
    m.AbortBackendMsg(2**63),
    m.UserMsg(0, PROMPT, SamplingParams()),
    m.UserMsg(1, PROMPT, DRAWN),
    m.BatchBackendMsg([m.ExitMsg(), m.BatchBackendMsg([m.AbortBackendMsg(5)])]),
]
TOKENIZER = [
    m.BatchTokenizerMsg([]),
    m.AbortMsg(3),
    m.TokenizeMsg(1, "", SamplingParams()),
    m.TokenizeMsg(1, CHAT, DRAWN),
    m.DetokenizeMsg(1, 42, False),
    m.DetokenizeMsg(1, -1, True, "error", "the model's logits are not finite"),
    m.BatchTokenizerMsg([m.DetokenizeMsg(1, 2, True, "stop"), m.AbortMsg(3)]),
]
FRONTEND = [
    m.BatchFrontendMsg([]),
    m.UserReply(1, " naïve — 你\u200b", False),
    m.UserReply(1, "", True, "length"),
    m.UserReply(1, "", True, "error", "too long"),
    m.BatchFrontendMsg(
        [m.UserReply(1, "a", False), m.UserReply(2, "b", True, "stop")]
    ),
]
BASES = {
    m.BaseBackendMsg: BACKEND,
    m.BaseTokenizerMsg: TOKENIZER,
    m.BaseFrontendMsg: FRONTEND,
}
ALL = [(base, msg) for base, msgs in BASES.items() for msg in msgs]


def assert_same(got: Any, expected: Any) -> None:
    """Equal in type and content, tensors included."""
    assert type(got) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype and got.device == expected.device
        assert got.shape == expected.shape and torch.equal(got, expected)
    elif is_dataclass(expected):
        for field in fields(expected):
            assert_same(getattr(got, field.name), getattr(expected, field.name))
    elif isinstance(expected, list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    else:
        assert got == expected
