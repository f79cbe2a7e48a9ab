"""Chapter 15: log-probabilities as a client sees them, in texts and bytes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisgl.message import DetokenizeMsg, TokenLogprob
from minisgl.tokenizer.detokenize import DetokenizeManager
from minisgl.tokenizer.logprobs import LogprobFormatter
from tests.vocabularies import NAMES, Pair, answers, full_text, load_pair

TEXTS = [
    "Hello world,  two spaces",
    " a space in front",
    "  two in front\n\n\tand lines",
    "naïve — 你好 🎉🤷🏽‍♀️ \u0000 ž",
    "1 + 1 = 2; def f(x):\n    return x",
    "",
]


@pytest.fixture(scope="module", params=NAMES)
def pair(request, tmp_path_factory) -> Pair:
    return load_pair(request.param, tmp_path_factory.mktemp("models"))


def entries(pair: Pair, ids: list[int], *others: int) -> list[dict]:
    """What a client gets for an answer; beside each token stand `others`."""
    manager = DetokenizeManager(pair.ours)
    formatter, found = LogprobFormatter(pair.ours), []
    for i, token in enumerate(ids):
        told = TokenLogprob(-0.5, [*others], [-float(n) for n in others])
        msg = DetokenizeMsg(1, token, i == len(ids) - 1, logprobs=told)
        known = manager.decode_map.get(1)
        first = known is None or not known.decoded_ids
        found += formatter.format(msg, first)
        manager.detokenize([msg])
    return found


def joined(found: list[dict]) -> bytes:
    return b"".join(bytes(entry["bytes"]) for entry in found)


@pytest.mark.parametrize("text", TEXTS)
def test_c17_the_bytes_joined_are_the_text(pair, text):
    ids = pair.ours.encode(text, add_special_tokens=False)
    whole = full_text(pair.theirs, ids)
    assert joined(entries(pair, ids)) == whole.encode()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_c17_whatever_a_model_says_the_bytes_are_what_it_said(pair, data):
    ids = data.draw(answers(len(pair.theirs)))
    whole, raw = full_text(pair.theirs, ids), joined(entries(pair, ids))
    if "\ufffd" in whole:
        # Not text: how many U+FFFD stand for what is the decoder's affair.
        assert "\ufffd" in raw.decode("utf-8", errors="replace")
    else:
        assert raw == whole.encode()


def test_a_special_token_has_a_name_and_no_bytes(pair):
    size = len(pair.theirs)
    end = pair.theirs.eos_token_id
    hello = pair.ours.encode("Hello", add_special_tokens=False)[0]
    special, word, beyond = entries(pair, [end, hello, size + 5], end)
    assert special["token"] == pair.ours.names["eos_token"]
    assert special["bytes"] == []
    assert word["token"].encode() == bytes(word["bytes"]) != b""
    assert (beyond["token"], beyond["bytes"]) == ("", [])
    for entry in (special, word, beyond):
        (other,) = entry.pop("top_logprobs")
        assert other["token"] == special["token"]
        assert other["logprob"] == -float(end)
        assert set(entry) == set(other) == {"token", "logprob", "bytes"}


def test_alternatives_are_written_as_the_token_would_be(pair):
    first, second = pair.ours.encode("one two", add_special_tokens=False)[:2]
    found = entries(pair, [first, second], first, second)
    for entry in found:
        others = {other["token"] for other in entry["top_logprobs"]}
        assert entry["token"] in others


def test_part_of_a_character_has_bytes_of_its_own(pair):
    ids = pair.ours.encode("🎉", add_special_tokens=False)
    if full_text(pair.theirs, ids) != "🎉":
        pytest.skip("this vocabulary has no such character")
    found = entries(pair, ids)
    assert joined(found) == "🎉".encode()
    if len(ids) > 1:
        assert all(
            "\ufffd" in e["token"] for e in found if 0 < len(e["bytes"]) < 4
        )


def test_who_did_not_ask_gets_none(pair):
    formatter = LogprobFormatter(pair.ours)
    assert formatter.format(DetokenizeMsg(1, 5, False), True) is None
