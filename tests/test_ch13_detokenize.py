"""Chapter 13: pieces of text as tokens come, and their sum."""

from itertools import chain

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from minisgl.core import SamplingParams
from minisgl.llm import LLM
from minisgl.message import DetokenizeMsg
from minisgl.tokenizer.detokenize import DetokenizeManager, find_printable_text
from minisgl.tokenizer.text import Tokenizer
from tests.parity import assert_parity, model_under_test, reference
from tests.vocabularies import (
    NAMES,
    answers,
    full_text,
    have_smollm2,
    load_pair,
    pair_of,
    searching,
)
from tools.models import model_path
from tools.stagekit import encode_chat
from tools.zoo.tokenizer import byte_letters

QUESTIONS = {
    "english": "Tell me about the sea.",
    "emoji": "Answer with three emoji.",
    "japanese": "日本語で自己紹介をしてください。",
}
# Most ids that one step may decode: the window, and its next one.
BOUND = 24 + 12
many = searching(150)


@pytest.fixture(scope="module", params=NAMES)
def pair(request, tmp_path_factory):
    return load_pair(request.param, tmp_path_factory.mktemp("kinds"))


def steps(ids, uid=1) -> list[DetokenizeMsg]:
    """The messages of an answer."""
    last = len(ids) - 1
    return [
        DetokenizeMsg(uid, token, i == last, "length" if i == last else None)
        for i, token in enumerate(ids)
    ]


def stream(tokenizer, ids) -> list[str]:
    manager = DetokenizeManager(tokenizer)
    pieces = manager.detokenize(steps(ids))
    assert not manager.decode_map
    return pieces


class Counting:
    """A tokenizer that notes how many ids each call of `decode` has."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.is_text, self.is_byte = tokenizer.is_text, tokenizer.is_byte
        self.tokenizer, self.counts = tokenizer, []

    def decode(self, ids):
        self.counts.append(len(ids))
        return self.tokenizer.decode(ids)


# Joined, the pieces are the text.


def test_pieces_joined_are_the_text_of_transformers(pair):
    @many
    @given(answers(len(pair.theirs)))
    def check(ids):
        assert "".join(stream(pair.ours, ids)) == full_text(pair.theirs, ids)

    check()


def test_nothing_is_sent_too_early_or_held_back_too_long(pair):
    """After each token all that is certain has been sent, and nothing else."""

    @many
    @given(answers(len(pair.theirs)))
    def check(ids):
        manager, sent = DetokenizeManager(pair.ours), ""
        settled = 0
        for i, token in enumerate(ids):
            sent += manager.detokenize([DetokenizeMsg(1, token, False)])[0]
            shown = pair.ours.is_text(token)
            if shown and not pair.ours.is_byte(token):
                settled = i + 1
            whole = full_text(pair.theirs, ids[:settled])
            assert sent == find_printable_text(whole)
        full = full_text(pair.theirs, ids)
        assert full.startswith(sent)
        if not any(pair.ours.is_byte(token) for token in ids):
            assert len(full) - len(sent) <= 1

    check()


def test_a_texts_tokens_stream_its_letters(pair):
    for text in (
        " Once upon a time there was a small cat.",
        "naïve — 你好，世界。🎉🇯🇵👨‍👩‍👧 e\u0301 end",
        "  two  spaces\n\n\tand a tab ",
    ):
        ids = pair.ours.encode(text, add_special_tokens=False)
        pieces = stream(pair.ours, ids)
        assert "".join(pieces) == full_text(pair.theirs, ids)
        assert "\ufffd" not in "".join(pieces)


def vocabulary(tokens: list[str], decoder) -> Tokenizer:
    """A tokenizer with these tokens that decodes in this way."""
    model = tokenizers.models.WordLevel(
        {token: i for i, token in enumerate(tokens)}, "?"
    )
    inner = tokenizers.Tokenizer(model)
    if decoder is not None:
        inner.decoder = decoder
    return Tokenizer(inner, {}, None)


LETTERS = byte_letters()
BYTES = ["<0xC3>", "<0xA9>", "<0xFF>", "<0xf0>", "<0x9F>", "<0x20>"]
OTHERS = {
    "none": (["a", "b", ".", "", "ab"], None),
    "word piece": (["a", "##b", "##", ".", "'s", "do", "not"], decoders.WordPiece()),
    "suffixes": (["a</w>", "b", "</w>", "", "cd</w>"], decoders.BPEDecoder()),
    "speech": (["a", "b", "|", "<pad>"], decoders.CTC()),
    "bytes, one of them empty": (
        ["", *(LETTERS[b] for b in (0xF0, 0x9F, 0x98, 0x80, 0x41, 0xEF, 0xBF, 0xBD))],
        decoders.ByteLevel(),
    ),
    "letters that are no bytes": (["你", "é", LETTERS[0xE4]], decoders.ByteLevel()),
    "two spaces less": (
        ["▁", "▁▁▁", "a", "▁b▁", "", *BYTES],
        decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 2, 0),
            ]
        ),
    ),
    "one space less": (
        ["▁", "▁▁▁", "a", "▁b", "▁▁c", *BYTES],
        decoders.Metaspace(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_decoder(name):
    tokens, decoder = OTHERS[name]
    tokenizer = vocabulary(tokens, decoder)
    ids = st.integers(0, len(tokens) - 1)
    runs = st.tuples(ids, st.integers(1, 40)).map(lambda p: [p[0]] * p[1])
    spread = st.lists(ids, max_size=100)
    repeated = st.lists(runs, max_size=6).map(lambda parts: [*chain(*parts)])

    @many
    @given(spread | repeated)
    def check(answer):
        assert "".join(stream(tokenizer, answer)) == tokenizer.decode(answer)

    check()


def test_a_character_waits_for_its_last_byte_and_the_rest_does_not():
    letters = [LETTERS[byte] for byte in range(256)]
    halves = ["a" + LETTERS[0xF0] + LETTERS[0x9F], LETTERS[0x80] + "b"]
    tokenizer = vocabulary(letters + halves, decoders.ByteLevel())
    grin = list("😀".encode())
    assert stream(tokenizer, [97, *grin, 98]) == ["a", "", "", "", "😀", "b"]
    assert stream(tokenizer, [256, 0x98, 257]) == ["a", "", "😀b"]
    assert stream(tokenizer, [*grin[:3], 98]) == ["", "", "", "\ufffdb"]
    assert stream(tokenizer, grin[:3]) == ["", "", "\ufffd"]
    assert stream(tokenizer, [0xFF, 0xFF, 97]) == ["", "\ufffd", "\ufffda"]
    assert stream(tokenizer, list("\ufffd!".encode())) == [
        "",
        "",
        "",
        "\ufffd!",
    ]


def test_a_run_of_byte_tokens_is_decided_at_its_end(tmp_path):
    ours, theirs = load_pair("bytes", tmp_path)[1:]
    names = ("<0xC3>", "<0xA9>", "<0xFF>", "▁cat")
    first, second, wrong, cat = map(ours._inner.token_to_id, names)
    assert stream(ours, [cat, first, second, cat]) == ["cat", "", "", "é cat"]
    assert stream(ours, [first, second]) == ["", "é"]
    bad = [first, second, wrong, cat]
    assert "".join(stream(ours, bad)) == "\ufffd" * 3 + " cat"
    assert full_text(theirs, bad) == "\ufffd" * 3 + " cat"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", ""),
        ("a", "a"),
        ("a\ufffd", "a"),
        ("\ufffd\ufffd", "\ufffd"),
        ("\ufffda", "\ufffda"),
    ],
)
def test_the_part_that_stays_as_it_is(text, part):
    assert find_printable_text(text) == part


def test_requests_do_not_mix(tmp_path):
    ours = load_pair("metaspace", tmp_path).ours
    texts = {uid: " Once there was a cat" * uid for uid in range(1, 9)}
    queues = {
        uid: steps(ours.encode(text, False), uid) for uid, text in texts.items()
    }
    manager, sent = DetokenizeManager(ours), dict.fromkeys(texts, "")
    while any(queues.values()):
        # One uid may come several times in a batch.
        batch = [m for q in queues.values() for m in q[:3]]
        queues = {uid: q[3:] for uid, q in queues.items()}
        pieces = manager.detokenize(batch)
        for msg, piece in zip(batch, pieces, strict=True):
            sent[msg.uid] += piece
    assert sent == {uid: text[1:] for uid, text in texts.items()}
    assert not manager.decode_map
    assert manager.detokenize([]) == []


# C09 and C10: with engines.


class Recorder(LLM):
    """Keeps the messages of every request."""

    def offline_send_result(self, reply) -> None:
        super().offline_send_result(reply)
        for msg in reply:
            self.sent.setdefault(msg.uid, []).append(msg)

    def ask(self, prompts, params):
        self.sent = {}
        results = self.generate(prompts, params)
        return list(zip(results, self.sent.values(), strict=True))


def recorder(folder, **more) -> Recorder:
    settings = {"device": "cpu", "page_size": 4, "num_page_override": 4096}
    return Recorder(str(folder), "float32", **settings | more)


@pytest.fixture(scope="module")
def folder():
    return model_under_test("qwen3-tiny")


@pytest.mark.parity
@pytest.mark.parametrize("language", QUESTIONS)
def test_c09_every_length_streams_its_text(folder, language):
    ours, theirs = pair_of(folder)[1:]
    prompt = encode_chat(theirs, QUESTIONS[language])
    lengths = [*range(1, 41)]
    wishes = [SamplingParams(max_tokens=n, ignore_eos=True) for n in lengths]
    engine = recorder(folder)
    manager = DetokenizeManager(ours)
    longest = engine.ask([prompt] * 40, wishes)[-1][0]["token_ids"]
    assert_parity(longest, reference(folder, prompt, 40))
    for length, (result, messages) in zip(
        lengths, engine.ask([prompt] * 40, wishes), strict=True
    ):
        assert len(result["token_ids"]) == length
        pieces = manager.detokenize(messages)
        assert len(pieces) == length
        expected = full_text(theirs, result["token_ids"])
        assert "".join(pieces) == result["text"] == expected
    assert not manager.decode_map


@pytest.mark.skipif(not have_smollm2(), reason="no smollm2-135m: python "
                    "tools/models.py fetch smollm2-135m")  # fmt: skip
def test_c09_smollm2_streams_what_transformers_shows():
    folder = model_path("smollm2-135m")
    ours, theirs = pair_of(folder)[1:]
    engine = recorder(folder)
    prompts = [encode_chat(theirs, text) for text in QUESTIONS.values()]
    answers = engine.ask(prompts, SamplingParams(max_tokens=40))
    for (result, messages), prompt in zip(answers, prompts, strict=True):
        ids = result["token_ids"]
        assert ids == reference(folder, prompt, 40, ignore_eos=False).ids
        for end in range(1, len(ids) + 1):
            cut = stream(ours, ids[:end])
            assert "".join(cut) == full_text(theirs, ids[:end])
        pieces = DetokenizeManager(ours).detokenize(messages)
        assert "".join(pieces) == result["text"] == full_text(theirs, ids)
        assert "<|im_end|>" not in result["text"]
    emoji = answers[1][0]["token_ids"]
    for end in (1, 2):  # inside of the first emoji
        assert "".join(stream(ours, emoji[:end])) == "\ufffd"
    assert (
        stream(ours, emoji[:3])[-1] == full_text(theirs, emoji[:3]) != "\ufffd"
    )


@pytest.mark.parametrize("name", ["metaspace", "bytes", "llama"])
def test_c09_spaces_stay_where_the_decoder_strips_one(name, tmp_path):
    ours, theirs = load_pair(name, tmp_path)[1:]
    space = ours._inner.token_to_id("▁")
    words = ours.encode("the cat and the dog", add_special_tokens=False)
    assert ours._inner.id_to_token(words[0]).startswith("▁")
    for ids in (
        words * 10,
        [space, *words],
        [space, space, *words],
        [*words, space, *words],
        [space] * 60,
        [theirs.eos_token_id, *words],
        [theirs.bos_token_id, 99999, space, *words],
    ):
        for end in range(1, len(ids) + 1):
            text = full_text(theirs, ids[:end])
            assert "".join(stream(ours, ids[:end])) == text
    assert "".join(stream(ours, words * 2)) == (
        "the cat and the dog the cat and the dog"
    )


def test_c10_ids_beyond_the_vocabulary_are_nothing(pair):
    size = len(pair.theirs)
    cat = pair.ours.encode("the cat", add_special_tokens=False)
    beyond = [size, size + 1, 49279, 2**31, 2**32, -1, -(2**40)]
    beyond = [i for i in beyond if i < 0 or i >= size]
    text = full_text(pair.theirs, cat)
    for odd in beyond:
        mixed = [odd, cat[0], odd, *cat[1:], odd]
        assert "".join(stream(pair.ours, mixed)) == text
        assert stream(pair.ours, [odd, odd]) == ["", ""]


def test_c10_the_engine_may_give_ids_that_the_tokenizer_lacks(monkeypatch):
    folder = model_path("qwen2-tiny")  # 576 rows for 512 tokens
    pair = pair_of(folder)
    ours, engine = pair.ours, recorder(folder)
    assert engine.engine.sampler.vocab_size > len(pair.theirs)
    order = [568, 65, 530, 66, 575]

    def force(batch):
        def edit(logits):
            at = len(engine.sent.get(0, []))
            logits = logits.clone()
            logits[:, order[min(at, 4)]] = 1e9
            return logits

        return edit

    monkeypatch.setattr(engine.engine.sampler, "processors", [force])
    want = SamplingParams(max_tokens=12, ignore_eos=True)
    [(result, messages)] = engine.ask([[1, 2, 3]], want)
    assert {*result["token_ids"]} == {*order}
    pieces = DetokenizeManager(ours).detokenize(messages)
    assert "".join(pieces) == result["text"]
    assert {*result["text"]} == {*ours.decode([65, 66])}


def test_c10_special_tokens_never_show(pair):
    added = pair.ours._inner.get_added_tokens_decoder()
    cat = pair.ours.encode(" cat", add_special_tokens=False)
    for token, entry in added.items():
        if entry.special:
            pieces = stream(pair.ours, [token, *cat, token, *cat, token])
            assert entry.content not in "".join(pieces)
            assert pieces[-1] == ""
            assert "".join(pieces) == full_text(pair.theirs, cat * 2)
    assert any(entry.special for entry in added.values())


STORMS = {
    "a first byte": [0xF0],
    "a byte that goes on": [0x80],
    "three of four": [0xF0, 0x9F, 0x98],
    "one, then two": [0xE4, 0xF0, 0x9F],
    "emoji": [*"🎉".encode()],
}


@pytest.mark.parametrize("name", ["qwen3-tiny", "smollm2-135m"])
@pytest.mark.parametrize("storm", STORMS)
def test_c10_the_work_of_a_token_is_bounded(name, storm, tmp_path):
    pair = load_pair(name, tmp_path)
    ids = [pair.ours._inner.token_to_id(LETTERS[b]) for b in STORMS[storm]]
    ids = (ids * 2000)[:2000]
    counting = Counting(pair.ours)
    manager, sent = DetokenizeManager(counting), ""
    for msg in steps(ids):
        counting.counts.clear()
        sent += manager.detokenize([msg])[0]
        assert sum(counting.counts) <= BOUND
    assert sent == full_text(pair.theirs, ids)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "qwen2-tiny"])
def test_c10_a_long_answer_is_decoded_a_bounded_number_of_times(name, tmp_path):
    pair = load_pair(name, tmp_path)
    counting = Counting(pair.ours)
    lone = pair.ours._inner.token_to_id("<0xE6>")
    ids = pair.ours.encode("Once upon a time 你好 🎉🎉 " * 60, False)
    ids += [lone] * 2000 if lone is not None else []
    assert "".join(stream(counting, ids)) == full_text(pair.theirs, ids)
    assert sum(counting.counts) <= 26 * len(ids)


def test_c10_after_an_abort_nothing_is_left(tmp_path):
    pair = load_pair("qwen3-tiny", tmp_path)
    manager = DetokenizeManager(pair.ours)
    for uid in range(10_000):
        manager.detokenize([DetokenizeMsg(uid, 70, False)])
        manager.abort(uid)
        # Tokens that were under way when the client left.
        late = [DetokenizeMsg(uid, 71, False), DetokenizeMsg(uid, 72, True)]
        assert manager.detokenize(late[: 1 + uid % 2]) == [""] * (1 + uid % 2)
        assert not manager.decode_map
    assert len(manager._aborted) < 5000
    manager.abort(123_456)  # never heard of
    manager.abort(123_456)
    assert manager.detokenize(steps([70, 71], 7_777_777)) == ["g", "h"]
    assert not manager.decode_map


def test_an_answer_that_fails_ends_with_what_there_was():
    ours = pair_of(model_path("qwen3-tiny")).ours
    manager = DetokenizeManager(ours)
    ids = ours.encode("a 🎉")
    pieces = manager.detokenize(
        [DetokenizeMsg(1, token, False) for token in ids[:-1]]
    )
    failed = DetokenizeMsg(1, -1, True, "error", "not finite")
    pieces += manager.detokenize([failed])
    assert "".join(pieces) == ours.decode(ids[:-1]) == "a \ufffd"
    assert not manager.decode_map


def test_offline_texts_are_not_cleaned_up(monkeypatch):
    folder = model_path("qwen3-tiny")
    engine = recorder(folder)
    for name in (
        "clean_up_tokenization_spaces",
        "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    ):
        monkeypatch.setattr(engine.tokenizer, name, True)
    ids = iter(engine.tokenizer("one , two . three").input_ids * 2)

    def force(batch):
        def edit(logits):
            logits = logits.clone()
            logits[:, next(ids)] = 1e9
            return logits

        return edit

    monkeypatch.setattr(engine.engine.sampler, "processors", [force])
    size = len(engine.tokenizer("one , two . three").input_ids)
    want = SamplingParams(max_tokens=size, ignore_eos=True)
    [(result, messages)] = engine.ask([[1, 2, 3]], want)
    assert result["text"] == "one , two . three"
    manager = DetokenizeManager(pair_of(folder).ours)
    assert "".join(manager.detokenize(messages)) == result["text"]
