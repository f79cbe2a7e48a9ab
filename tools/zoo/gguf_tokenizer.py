"""tokenizer.json and tokenizer_config.json out of the metadata of a GGUF file."""

from typing import Any

from tools.zoo.places import ModelError
from tools.zoo.tokenizer import bpe_model

CONTROL = 3
"""Token type of special tokens in `tokenizer.ggml.token_type`."""


def gguf_tokenizer(fields: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE with SmolLM's pre-tokenizer.

    Raises:
        ModelError: the file names another kind of tokenizer.
    """
    kind = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ModelError(f"no conversion for the GGUF tokenizer {kind}")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types = fields["tokenizer.ggml.token_type"]
    special = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    # Every digit is a word of its own.
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": token, **special}
            for i, token in enumerate(tokens)
            if types[i] == CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [digits, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": bpe_model(
            tokens,
            [pair.split(" ") for pair in fields["tokenizer.ggml.merges"]],
        ),
    }


def gguf_tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    """tokenizer_config.json: special tokens and the chat template."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    named = {
        f"{role}_token": tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in roles.items()
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "chat_template": fields["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": fields["llama.context_length"],
    }
