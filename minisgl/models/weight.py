"""Weights from safetensors files to a model, one parameter at a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from safetensors import SafetensorError, safe_open

from minisgl.layers import BaseOP
from minisgl.utils import download_hf_weight, init_logger

logger = init_logger(__name__)

# What the model calls one weight, checkpoints store as several.
_MERGED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_PART_OF = {part: whole for whole, parts in _MERGED.items() for part in parts}
# Stored by some checkpoints though nothing is lost without them: tables that
# are computed, and the head of a model whose head is its embedding.
_REDUNDANT = ("rotary_emb.inv_freq", "lm_head.weight")


class WeightFiles:
    """The tensors of a model folder by name, whichever file holds them.

    With an index only the files it names count; without one, all do.

    Raises:
        FileNotFoundError: no weights here, or a file the index names is absent.
        ValueError: a file that cannot be read, or a tensor stored twice.
        KeyError: a tensor that the index places in a file that lacks it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._place: dict[str, str] = {}
        index = folder / "model.safetensors.index.json"
        if index.exists():
            self._read_index(index)
        else:
            self._scan()

    def _read_index(self, index: Path) -> None:
        self._place = dict(json.loads(index.read_text())["weight_map"])
        for file in sorted(set(self._place.values())):
            self._open(file)
        for name, file in self._place.items():
            if name not in self._files[file][1]:
                raise KeyError(f"{index.name} places {name!r} in {file}: not there")

    def _scan(self) -> None:
        for path in sorted(self.folder.glob("*.safetensors")):
            for name in self._open(path.name):
                if name in self._place:
                    both = f"{self._place[name]} and {path.name}"
                    raise ValueError(f"tensor {name!r} is stored twice: {both}")
                self._place[name] = path.name
        if not self._place:
            raise FileNotFoundError(f"no .safetensors file in {self.folder}")

    def _open(self, file: str) -> set[str]:
        path = self.folder / file
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing though the index names it")
        try:
            handle = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise ValueError(
                f"{path} is truncated or damaged ({error}); fetch it again"
            ) from error
        names = set(handle.keys())
        self._files[file] = (handle, names)
        return names

    def names(self) -> list[str]:
        return list(self._place)

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def read(self, name: str) -> torch.Tensor:
        """The tensor as it is stored, on the CPU, mapped from its file."""
        if name not in self._place:
            raise KeyError(f"tensor {name!r} is in no file of {self.folder}")
        found: torch.Tensor = self._files[self._place[name]][0].get_tensor(name)
        return found


def _get_merge_info(key: str) -> tuple[str, tuple[str, ...]]:
    """The model's name for a stored name, and all parts it is made of."""
    for part, whole in _PART_OF.items():
        if f".{part}." in key:
            merged = key.replace(f".{part}.", f".{whole}.")
            names = (key.replace(part, other) for other in _MERGED[whole])
            return merged, tuple(names)
    return key, (key,)


def _merge(
    parts: list[torch.Tensor], device: torch.device, dtype: torch.dtype | None
) -> torch.Tensor:
    """Stack along the output into memory of our own, converting on the way."""
    rows = sum(len(part) for part in parts)
    shape = (rows, *parts[0].shape[1:])
    result = torch.empty(shape, dtype=dtype or parts[0].dtype, device=device)
    for target, part in zip(result.split([len(p) for p in parts]), parts, strict=True):
        target.copy_(part)
    return result


def load_weight(
    model_path: str,
    device: torch.device,
    dtype: torch.dtype | None = None,
    wanted: Container[str] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name in the model, tensor on `device`), each name once.

    Only one weight is in flight: what is yielded is all that is allocated.

    model_path: a folder or a hub id.
    dtype: what the tensors become; as they are stored when None.
    wanted: names to yield; others are not read, and reported at the end.

    Raises:
        FileNotFoundError, ValueError, KeyError: as for `WeightFiles`.
    """
    files = WeightFiles(Path(download_hf_weight(model_path)))
    groups = dict(_get_merge_info(name) for name in files.names())
    unknown = [n for n in groups if wanted is not None and n not in wanted]
    for name in unknown:
        del groups[name]
    quiet = not sys.stderr.isatty()
    bar = track(groups.items(), "Loading weights", disable=quiet, transient=True)
    for name, stored in bar:
        yield name, _merge([files.read(part) for part in stored], device, dtype)
    if odd := [name for name in unknown if not name.endswith(_REDUNDANT)]:
        logger.warning(f"{len(odd)} unknown tensors ignored: {', '.join(odd[:5])}")


def load_model_weight(
    model: BaseOP, model_path: str, device: torch.device, dtype: torch.dtype
) -> None:
    """Fill `model`, made on the meta device, from a folder or hub id.

    Raises:
        KeyError: a weight of the model is in no file; the message has its name.
        ValueError: a shape differs, or a file is damaged.
    """
    names = model.state_dict().keys()
    weights = load_weight(model_path, device, dtype, wanted=names)
    model.load_state_dict(dict(weights))
