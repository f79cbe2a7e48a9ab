"""Writes the tiny checkpoints as Hugging Face folders and knows their digests."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.numpy import save

from tools.zoo.places import ModelError, models_dir
from tools.zoo.recipe import Recipe
from tools.zoo.recipes import RECIPES
from tools.zoo.tokenizer import tokenizer_config, tokenizer_json
from tools.zoo.weights import Array, make_weights

DIGESTS = Path(__file__).with_name("digests.json")


def recorded_digest(name: str) -> str | None:
    """The sha256 that `digest` must give for a tiny checkpoint."""
    known: dict[str, str] = json.loads(DIGESTS.read_text())
    return known.get(name)


def digest(folder: Path) -> str:
    """sha256 over names and contents of the folder's files; empty for no folder."""
    if not folder.is_dir():
        return ""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.name} {content}\n".encode())
    return total.hexdigest()


def tiny_path(name: str) -> Path:
    """Folder of a tiny checkpoint; made when missing or not what its recipe gives."""
    folder = models_dir() / name
    if digest(folder) != recorded_digest(name):
        make_tiny(name)
    return folder


def make_tiny(name: str) -> Path:
    """Makes a tiny checkpoint anew and puts it in place of any older one.

    Raises:
        ModelError: the bytes differ from the recorded ones.
    """
    folder = models_dir() / name
    scratch = folder.with_name(f".{name}.{os.getpid()}")
    try:
        write_tiny(RECIPES[name], scratch)
        if digest(scratch) != recorded_digest(name):
            raise ModelError(
                f"{name}: the bytes made here are not those of tools/zoo/digests.json;"
                " install the numpy and safetensors of constraints.txt"
            )
        swap_in(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def write_tiny(recipe: Recipe, folder: Path) -> None:
    """Writes one checkpoint into a new folder: configs, tokenizer, weights."""
    folder.mkdir(parents=True)
    config = recipe.config_json()
    length = int(config["max_position_embeddings"])
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", recipe.generation_json())
    write_json(folder / "tokenizer.json", tokenizer_json(recipe.style))
    write_json(
        folder / "tokenizer_config.json", tokenizer_config(recipe.style, length)
    )
    _write_weights(make_weights(config, recipe.seed), recipe.shards, folder)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON the way Hugging Face folders hold it."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")


def _write_weights(
    weights: dict[str, Array], shards: int, folder: Path
) -> None:
    if shards == 1:
        _save(weights, folder / "model.safetensors")
        return
    names = list(weights)
    where: dict[str, str] = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        # Cut by count, in the middle of a layer, as real checkpoints are.
        part = names[i * len(names) // shards : (i + 1) * len(names) // shards]
        _save({name: weights[name] for name in part}, folder / file)
        where |= dict.fromkeys(part, file)
    size = sum(tensor.nbytes for tensor in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    write_json(folder / "model.safetensors.index.json", index)


def _save(weights: dict[str, Array], path: Path) -> None:
    # Not save_file: it makes files that only their owner may read.
    path.write_bytes(save(weights, {"format": "pt"}))


def swap_in(scratch: Path, folder: Path) -> None:
    """Two renames, so that another process never sees half a checkpoint."""
    old = scratch.with_name(scratch.name + ".old")
    try:
        if folder.exists():
            folder.rename(old)
        scratch.rename(folder)
    except OSError:
        # Another process was faster; what it made is the same.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
