"""Tokenizers of every kind: the light ones beside those of transformers."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from minisgl.tokenizer.text import Tokenizer, load_light_tokenizer
from tools.models import model_path
from tools.zoo import smollm2
from tools.zoo.metaspace import write_metaspace
from tools.zoo.places import models_dir
from tools.zoo.recipes import RECIPES

LLAMA = {"reads_bytes": True, "tokenizer_class": "LlamaTokenizer"}
SPACED: dict[str, dict[str, Any]] = {
    "metaspace": {"reads_bytes": False},
    "bytes": {"reads_bytes": True},
    "llama": LLAMA,
    "llama-legacy": LLAMA | {"legacy": True},
    "llama-unprefixed": LLAMA | {"add_prefix_space": False},
}
NAMES = [*sorted(RECIPES), *SPACED, smollm2.NAME]


class Pair(NamedTuple):
    """A folder's tokenizer, ours and as transformers loads it."""

    folder: Path
    ours: Tokenizer
    theirs: Any


def searching(examples: int) -> settings:
    """The same examples every time, however slow the machine is."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def have_smollm2() -> bool:
    return (models_dir() / smollm2.NAME / "config.json").is_file()


def load_pair(name: str, scratch: Path) -> Pair:
    """The tokenizer of this name; those with ▁ are written to `scratch`."""
    if name == smollm2.NAME and not have_smollm2():
        pytest.skip(
            "no smollm2-135m: python tools/models.py fetch smollm2-135m"
        )
    if name in SPACED:
        return pair_of(write_metaspace(scratch / name, **SPACED[name]))
    return pair_of(model_path(name))


def pair_of(folder: Path) -> Pair:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    return Pair(folder, load_light_tokenizer(str(folder)), theirs)


def full_text(theirs: Any, ids: list[int]) -> str:
    """What transformers makes of all ids of an answer."""
    kept = [i for i in ids if 0 <= i < 2**32]  # its library takes no others
    return theirs.decode(
        kept, skip_special_tokens=True, clean_up_tokenization_spaces=False
    )


def answers(size: int) -> st.SearchStrategy[list[int]]:
    """Ids as a model may give them, for a vocabulary of `size`.

    Any; few different ones, so that some repeat; a few thousand times the same
    kind (the first ids are bytes in the small vocabularies, the last are special
    tokens and beyond).
    """
    low, high = st.integers(0, 262), st.integers(max(0, size - 12), size + 12)
    mixed = st.integers(0, size - 1) | low | high
    few = st.lists(mixed, min_size=1, max_size=4).flatmap(
        lambda ids: st.lists(st.sampled_from(ids), max_size=150)
    )
    return st.lists(mixed, max_size=60) | st.lists(low, max_size=80) | few
