"""Tokenizers that write a space as ▁ and take away the one in front of a text.

Their vocabulary is that of the tiny checkpoints' text, as SentencePiece would cut it:
words begin with ▁, and the tokens <0x00> to <0xFF> stand for bytes. Two forms occur in
model folders. The older one marks spaces in a normalizer and reads bytes (Llama 2), the
other leaves all of it to one pre-tokenizer and one decoder, called Metaspace.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from tools.zoo.chat import STYLES, VOCAB_SIZE
from tools.zoo.tiny import write_json
from tools.zoo.tokenizer import (
    TEXT,
    bpe_json,
    bpe_model,
    merge_pairs,
    tokenizer_config,
)

STYLE = STYLES["mistral"]
MARK = "▁"
OLDER: dict[str, Any] = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": MARK},
            {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
        ],
    },
    "pre_tokenizer": None,
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
}
METASPACE: dict[str, Any] = {
    "type": "Metaspace",
    "replacement": MARK,
    "prepend_scheme": "always",
    "split": True,
}


def write_metaspace(folder: Path, reads_bytes: bool, **config: Any) -> Path:
    """Write such a tokenizer as a folder that transformers can load.

    Args:
        reads_bytes: the older form, with byte tokens for unknown letters.
        config: what tokenizer_config.json has beside the usual.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {"model_type": "llama"})
    write_json(folder / "tokenizer.json", metaspace_json(reads_bytes))
    usual = tokenizer_config(STYLE, 4096)
    write_json(folder / "tokenizer_config.json", usual | config)
    return folder


def metaspace_json(reads_bytes: bool) -> dict[str, Any]:
    """Content of tokenizer.json; VOCAB_SIZE tokens, the special ones last."""
    words = Counter(tuple(MARK + word) for word in TEXT.split())
    letters = sorted({letter for word in words for letter in word})
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters]
    count = VOCAB_SIZE - len(STYLE.specials) - len(tokens)
    merges = [list(pair) for pair in merge_pairs(words, count)]
    tokens += [first + second for first, second in merges]
    unknown = {"unk_token": "<unk>", "fuse_unk": True}
    model = bpe_model(tokens, merges) | unknown
    spaces = {"pre_tokenizer": METASPACE, "decoder": METASPACE}
    content = bpe_json(tokens, merges, STYLE)
    content |= OLDER if reads_bytes else spaces
    return content | {"model": model | {"byte_fallback": reads_bytes}}
