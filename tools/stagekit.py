"""What every chapter's main.py shares: measured values, models, tokenizers."""

from pathlib import Path
from typing import Any

from tools.models import model_path

__all__ = ["load_tokenizer", "measured", "model_path"]


def measured(value: float, unit: str, digits: int = 1) -> str:
    """A number that differs from run to run, as `~12.3 ms`.

    The checker compares output.txt exactly but for the digits after a `~`.
    """
    return f"~{value:,.{digits}f} {unit}"


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer of a model folder, with its chat template."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)
