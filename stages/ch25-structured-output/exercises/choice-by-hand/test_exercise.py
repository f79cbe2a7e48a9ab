"""A hand-written matcher against texts by hand and against xgrammar."""

import random

import pytest
import torch
import xgrammar as xgr

from minisgl.structure.choice import ChoiceMatcher

WORDS = [b"", b"yes", b"y", b"e", b"s", b" no", b"n", b"o", b"no", b"ne"]
LETTERS = [bytes([i]) for i in "größe日本".encode()]
VOCABULARY = [*WORDS, *LETTERS, b""]
END = len(VOCABULARY) - 1
TEXTS = ["yes", "no", "none", "größe", "日本", "日"]


def test_a_text_may_come_in_any_tokens():
    matcher = ChoiceMatcher(["yes", "no"], WORDS, [])
    assert matcher.allowed() == {1, 2, 6, 8}
    assert matcher.accept(2) and matcher.allowed() == {3}
    assert matcher.accept(3) and matcher.accept(4)
    assert matcher.allowed() == set()


def test_a_wrong_token_changes_nothing():
    matcher = ChoiceMatcher(["yes"], WORDS, [])
    assert not matcher.accept(7) and not matcher.accept(0)
    assert matcher.allowed() == {1, 2}


def test_a_whole_text_may_end_or_go_on():
    matcher = ChoiceMatcher(["no", "none"], VOCABULARY, [END])
    assert matcher.accept(8)
    assert matcher.allowed() == {6, 9, END}
    assert matcher.accept(END)
    assert matcher.allowed() == set() and not matcher.accept(END)


def test_an_end_token_in_the_middle_is_refused():
    matcher = ChoiceMatcher(["yes"], VOCABULARY, [END])
    assert not matcher.accept(END)
    assert matcher.accept(2) and not matcher.accept(END)


@pytest.mark.parametrize("seed", range(20))
def test_masks_are_those_of_xgrammar(seed):
    raw = xgr.VocabType.RAW
    info = xgr.TokenizerInfo(VOCABULARY, raw, stop_token_ids=[END])
    compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    rule = " | ".join(f'"{text}"' for text in TEXTS)
    theirs = xgr.GrammarMatcher(compiler.compile_grammar(f"root ::= {rule}"))
    ours = ChoiceMatcher(TEXTS, VOCABULARY, [END])
    rng = random.Random(seed)
    mask = torch.zeros(1, 1, dtype=torch.int32)
    while not theirs.is_terminated():
        theirs.fill_next_token_bitmask(mask)
        bits = (mask[0] >> torch.arange(32)) & 1
        expected = set(bits[: END + 1].nonzero().flatten().tolist())
        assert ours.allowed() == expected
        token = rng.choice(sorted(expected))
        assert ours.accept(token) and theirs.accept_token(token)
