"""A tokenizer without torch and transformers, made of a model's own files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, pre_tokenizers

from minisgl.tokenizer.chat import render_chat
from minisgl.utils.hf import download_hf_weight

_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_LLAMA_NAMES = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
}
_NO_TEMPLATE = (
    "this model has no chat template: send a text to /v1/completions, or put "
    "a chat_template.jinja into the model's folder"
)


class Tokenizer:
    """Text to token ids and back, as transformers does it for the same folder.

    inner: what tokenizer.json holds.
    names: special tokens by role, as {"bos_token": "<s>"}.
    template: the chat template, if there is one.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        names: Mapping[str, str],
        template: str | None,
    ) -> None:
        # A file may ask for both; a prompt wants neither.
        inner.no_padding()
        inner.no_truncation()
        self._inner, self.names, self._template = inner, names, template
        added = inner.get_added_tokens_decoder().values()
        self._special = {token.content for token in added if token.special}
        self._has_bytes = self.decode_tokens(["<0x41>"]) == "A"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text.

        add_special_tokens: those that the model wants around every text. A
            chat template writes them itself.
        """
        encoding = self._inner.encode(
            text, add_special_tokens=add_special_tokens
        )
        return list(encoding.ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special ones and those without a token have none."""
        known = [i for i in ids if 0 <= i < 2**32]
        text: str = self._inner.decode(known, skip_special_tokens=True)
        return text

    def decode_tokens(self, tokens: list[str]) -> str:
        """The text of tokens that are given as the vocabulary has them."""
        decoder = self._inner.decoder
        return decoder.decode(tokens) if decoder else " ".join(tokens)

    def is_text(self, token_id: int) -> bool:
        """Whether `decode` looks at this id, or acts as if it were not there.

        It skips special tokens and ids that are beyond the vocabulary.
        """
        token = self.token(token_id)
        return token is not None and token not in self._special

    def is_byte(self, token_id: int) -> bool:
        """Whether the token stands for a byte, as <0xE2> does.

        `decode` takes a run of them as UTF-8, all or nothing: if one byte is
        wrong, every byte of the run becomes a U+FFFD.
        """
        token = self.token(token_id) if self._has_bytes else None
        return token is not None and _BYTE.fullmatch(token) is not None

    def token(self, token_id: int) -> str | None:
        """A token as the vocabulary has it; None if there is no such id."""
        if not 0 <= token_id < 2**32:
            return None
        token: str | None = self._inner.id_to_token(token_id)
        return token

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a chat up to where the answer begins.

        It has all special tokens already: encode it without adding any.

        Raises:
            ValueError: there is no template, or it refuses these turns.
        """
        if self._template is None:
            raise ValueError(_NO_TEMPLATE)
        return render_chat(self._template, messages, self.names)


def load_light_tokenizer(model_path: str) -> Tokenizer:
    """The tokenizer of a folder or hub id.

    Raises:
        FileNotFoundError: there is no tokenizer.json.
        ValueError: a file cannot be understood.
    """
    folder = Path(download_hf_weight(model_path))
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} has no tokenizer.json; fetch it too, or let transformers "
            "make one: AutoTokenizer.from_pretrained(F).save_pretrained(F)"
        )
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more exact
        raise ValueError(f"{path} cannot be read: {error}") from error
    config = _read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:  # an older way to store them
        config |= _read_json(folder / "special_tokens_map.json")
    kind = str(config.get("tokenizer_class")).removesuffix("Fast")
    if kind == "LlamaTokenizer" and '"ByteLevel"' not in path.read_text(
        "utf-8"
    ):
        config = _LLAMA_NAMES | config
        _space_as_llama(inner, config)
    names = _add_tokens(inner, config)
    return Tokenizer(inner, names, _load_template(folder, config))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    return dict(found)


def _space_as_llama(
    inner: tokenizers.Tokenizer, config: Mapping[str, Any]
) -> None:
    """Mark spaces the way transformers does for this class of tokenizer.

    It does not look at what tokenizer.json says about them.
    """
    prefix = config.get("add_prefix_space") is not False
    scheme = "always" if config.get("legacy") else "first"
    inner.normalizer = None
    inner.pre_tokenizer = pre_tokenizers.Metaspace(
        prepend_scheme=scheme if prefix else "never", split=False
    )
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    inner.decoder = decoders.Sequence(steps + strip)


def _add_tokens(
    inner: tokenizers.Tokenizer, config: Mapping[str, Any]
) -> dict[str, str]:
    """Add what only tokenizer_config.json has; returns the tokens with a role."""
    stored = config.get("added_tokens_decoder", {})
    inner.add_tokens(
        [_as_token(stored[key]) for key in sorted(stored, key=int)]
    )
    roles = {
        key: _as_token(value)
        for key, value in config.items()
        if key.endswith("_token") and isinstance(value, str | dict)
    }
    extra = config.get("extra_special_tokens")
    extra = extra or config.get("additional_special_tokens") or []
    if isinstance(extra, dict):
        roles |= {key: _as_token(value) for key, value in extra.items()}
        extra = []
    present = inner.get_added_tokens_decoder().values()
    known = {token.content for token in present}
    wanted = [*roles.values(), *(_as_token(value) for value in extra)]
    for token in wanted:
        if token.content not in known:
            token.special = True
            inner.add_tokens([token])
    return {key: token.content for key, token in roles.items()}


def _as_token(value: str | Mapping[str, Any]) -> AddedToken:
    if isinstance(value, str):
        return AddedToken(value, special=True)
    return AddedToken(**{k: v for k, v in value.items() if k != "__type"})


def _load_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """A file counts more than the config, which may hold several by name."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # of {"name": ..., "template": ...}
        found = {item["name"]: item["template"] for item in found}
    return found.get("default") if isinstance(found, dict) else found
