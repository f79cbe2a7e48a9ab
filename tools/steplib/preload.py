"""The slow imports, paid once by the parent of all children.

It computes nothing: a child of a process that has run an OpenMP region hangs.
"""

from __future__ import annotations

import atexit
import gc
import importlib
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import entry_points

from _pytest.config import default_plugins

PRELOAD = {
    "": ["asyncio", "difflib", "gzip", "hypothesis", "pdb", "runpy"],
    "numpy": ["numpy"],
    "torch": ["torch", "torch._subclasses.schema_check_mode"],
    "typer": ["typer", "typer.testing"],
    "rich": ["rich.console", "rich.table", "rich.live"],
    "safetensors": ["safetensors.torch", "safetensors.numpy"],
    "tokenizers": ["tokenizers"],
    "transformers": [
        "transformers.generation",
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.qwen2.modeling_qwen2",
        "transformers.models.qwen3.modeling_qwen3",
        "transformers.models.llama.modeling_llama",
        "transformers.models.mistral.modeling_mistral",
    ],
}


def preload(texts: Sequence[str]) -> None:
    """Import what the source `texts` mention, without computing anything."""
    for word, modules in PRELOAD.items():
        if word and not any(word in text for text in texts):
            continue
        for name in modules:
            _import(name)
    for name in default_plugins:
        _import(f"_pytest.{name}")
    for entry in entry_points(group="pytest11"):
        _import(entry.module)
    gc.collect()
    gc.freeze()
    # Some bindings print what is left of theirs when Python ends.
    atexit.register(gc.unfreeze)


def _import(name: str) -> None:
    with suppress(ImportError):  # the chapter that needs it will say so
        importlib.import_module(name)
