"""What a Hugging Face model folder or hub id has to say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from transformers import PreTrainedTokenizerBase as Tokenizer

_WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]
_TOKENIZERS = ["tokenizer.json", "tokenizer.model", "vocab.json"]


def download_hf_weight(model_path: str) -> str:
    """A local folder as it is; a hub id after its files have been fetched.

    Shows the hub's progress bars.

    Raises:
        FileNotFoundError: neither a folder nor an id that could be fetched.
    """
    if Path(model_path).is_dir():
        return model_path
    # Nobody has an id like a path: it is a name, or an owner/name.
    if model_path.startswith((".", "/", "~")) or model_path.count("/") > 1:
        raise FileNotFoundError(
            f"{model_path!r} is not a folder; check the path"
        )
    # Libraries are imported where they are used: transformers takes seconds,
    # and not every process that asks this file for something needs it.
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(model_path, allow_patterns=_WANTED))
    except Exception as error:
        raise FileNotFoundError(
            f"{model_path!r} is not a folder, and fetching it from the hub "
            f"failed ({type(error).__name__}); check the name or the network"
        ) from error


def load_tokenizer(model_path: str) -> Tokenizer:
    """The tokenizer of a folder or hub id.

    Raises:
        FileNotFoundError: the folder holds none.
    """
    from transformers import AutoTokenizer

    folder = Path(download_hf_weight(model_path))
    # Without files transformers makes an empty one, and says nothing.
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise FileNotFoundError(f"{folder} has no tokenizer.json: fetch it too")
    return AutoTokenizer.from_pretrained(str(folder))


@cache
def cached_load_hf_config(model_path: str) -> PretrainedConfig:
    """The parsed config.json, read once a process.

    Of a model that also sees or hears it is the part about text.
    """
    from transformers import AutoConfig

    folder = download_hf_weight(model_path)
    return _text_part(AutoConfig.from_pretrained(folder))


def _text_part(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration of the decoder, with what only the whole states."""
    text = config.get_text_config(decoder=True)
    if text is not config:
        text.architectures = config.architectures
        text.dtype = text.dtype or config.dtype
        tied = (text.tie_word_embeddings, config.tie_word_embeddings)
        text.tie_word_embeddings = any(tied)
    return text


def load_eos_token_ids(model_path: str) -> frozenset[int]:
    """Every id that ends an answer: config.json's and generation_config.json's.

    Chat models often name the end of a turn in only one of the two.
    """
    found: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        path = Path(download_hf_weight(model_path)) / name
        settings = json.loads(path.read_text()) if path.exists() else {}
        for part in (settings, settings.get("text_config") or {}):
            found |= _as_set(part.get("eos_token_id"))
    return frozenset(found)


def _as_set(value: Any) -> set[int]:
    if value is None:
        return set()
    return set(value) if isinstance(value, list) else {value}
