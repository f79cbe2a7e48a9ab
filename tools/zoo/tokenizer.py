"""A small byte-level BPE tokenizer with a chat template, made without any library.

The pair merges follow Sennrich, Haddow and Birch, "Neural Machine Translation of
Rare Words with Subword Units" (2016); letters stand for bytes as in GPT-2. Written
out here because the bytes of tokenizer.json must not depend on a library's version.
"""

import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import Any

from tools.zoo.chat import VOCAB_SIZE, Style

TEXT = """\
A language model reads a list of tokens and gives a score to every token that could
come next. The engine takes the best one, puts it at the end of the list, and asks
again. This is the whole of it; all that follows is there to do it fast, for many
people at the same time, and without a mistake. When a request comes in, its prompt
is cut into tokens. The first pass over the prompt is the prefill: it fills the cache
with keys and values. Each later pass is a decode step and adds one token. What is the
capital of France? The capital of France is Paris. What is two and two? Two and two is
four. Please tell me a short story about a cat and a dog. Once upon a time there was a
small cat who lived in a house by the sea. Every morning the cat went to the window to
look at the boats, and every evening the dog came home and told her about the streets,
the shops and the other dogs. You are a helpful assistant. Write a function that adds
two numbers. Here is the function: def add(a, b): return a + b. How are you? I am well,
thank you. Explain why the sky is blue. Light from the sun is scattered by the air, and
blue light is scattered more than red light.
你好，世界。请介绍一下你自己。我是一个语言模型。
"""


def byte_letters() -> dict[int, str]:
    """The printable letter GPT-2 uses for each byte 0..255."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain}
    return letters | {byte: chr(256 + i) for i, byte in enumerate(others)}


@lru_cache(maxsize=4)
def learn_merges(count: int) -> tuple[tuple[str, str], ...]:
    """The `count` most frequent pair merges of TEXT; ties go to the smaller pair."""
    letters = byte_letters()
    pieces = re.findall(r" ?\w+| ?[^\w\s]+|\s+", TEXT)
    words = Counter(
        tuple(letters[b] for b in piece.encode()) for piece in pieces
    )
    return merge_pairs(words, count)


def merge_pairs(
    words: Counter[tuple[str, ...]], count: int
) -> tuple[tuple[str, str], ...]:
    """The `count` pairs to join, one after the other, in words of single letters."""
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in pairwise(word):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, times in words.items():
            merged[_join(word, best)] += times
        words = merged
    return tuple(merges)


def _join(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    at = 0
    while at < len(word):
        hit = word[at : at + 2] == pair
        out.append(pair[0] + pair[1] if hit else word[at])
        at += 2 if hit else 1
    return tuple(out)


def tokenizer_json(style: Style) -> dict[str, Any]:
    """Content of tokenizer.json: VOCAB_SIZE tokens, the special ones last."""
    merges = learn_merges(VOCAB_SIZE - 256 - len(style.specials))
    tokens = [*byte_letters().values(), *(a + b for a, b in merges)]
    return bpe_json(tokens, [list(pair) for pair in merges], style)


def bpe_model(tokens: list[str], merges: list[list[str]]) -> dict[str, Any]:
    """The "model" of tokenizer.json: byte pairs, ids in the order of `tokens`."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": merges,
    }


def bpe_json(
    tokens: list[str], merges: list[list[str]], style: Style
) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE whose special tokens follow `tokens`."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    added = [
        {
            "id": len(tokens) + i,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, content in enumerate(style.specials)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": _starts_with(style) if style.bos else byte_level,
        "decoder": byte_level,
        "model": bpe_model(tokens, merges),
    }


def _starts_with(style: Style) -> dict[str, Any]:
    assert style.bos is not None
    bos = {"SpecialToken": {"id": style.bos, "type_id": 0}}
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 1}}
    token = {
        "id": style.bos,
        "ids": [style.id_of(style.bos)],
        "tokens": [style.bos],
    }
    return {
        "type": "TemplateProcessing",
        "single": [bos, first],
        "pair": [bos, first, second],
        "special_tokens": {style.bos: token},
    }


def tokenizer_config(style: Style, max_length: int) -> dict[str, Any]:
    """Content of tokenizer_config.json, chat template included."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": style.bos,
        "eos_token": style.ends[0],
        "pad_token": style.ends[-1],
        "chat_template": style.template,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
