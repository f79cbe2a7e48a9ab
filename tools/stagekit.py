"""What every chapter's main.py shares: measured values, models, tokenizers."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import typer

from tools.models import model_path
from tools.zoo.places import ModelError

__all__ = [
    "encode_chat",
    "load_tokenizer",
    "measured",
    "model_path",
    "run",
    "transformers_answer",
]


def run(main: Callable[..., None]) -> None:
    """Run a main from the command line; what is wrong with its input is one line.

    Raises:
        SystemExit: with that line, for an unknown model, device or setting.
    """
    try:
        typer.run(main)
    except (ModelError, FileNotFoundError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None


def measured(value: float, unit: str, digits: int = 1) -> str:
    """A number that differs from run to run, as `~12.3 ms`.

    The checker compares output.txt exactly but for the digits after a `~`.
    """
    return f"~{value:,.{digits}f} {unit}"


def load_tokenizer(path: str | Path) -> Any:
    """The tokenizer of a model folder, with its chat template."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def encode_chat(tokenizer: Any, question: str) -> list[int]:
    """Ids of `question` as a user's message, up to where the answer begins.

    Without a chat template the bare text is encoded.
    """
    if not tokenizer.chat_template:
        return list(tokenizer(question).input_ids)
    message = [{"role": "user", "content": question}]
    chat = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, tokenize=False
    )
    return list(tokenizer(chat, add_special_tokens=False).input_ids)


def transformers_answer(
    path: Path,
    prompt: list[int],
    max_tokens: int,
    ends: Collection[int],
    device: str = "cpu",
    dtype: str = "float32",
) -> list[int]:
    """The greedy ids of transformers for the same prompt, computed on the spot.

    An id of `ends` ends the answer and is its last one.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(device)
    batch = torch.tensor([prompt], device=device)
    answer = model.generate(
        batch,
        attention_mask=torch.ones_like(batch),
        do_sample=False,
        max_new_tokens=max_tokens,
        eos_token_id=sorted(ends) or None,
    )
    ids: list[int] = answer[0, len(prompt) :].tolist()
    return ids
