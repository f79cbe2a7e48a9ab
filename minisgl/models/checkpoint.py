"""The tensors that lie in the safetensors files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open


class WeightFiles:
    """The tensors of a model folder by name, whichever file holds them.

    With an index only the files it names count; without one, all do.

    Raises:
        FileNotFoundError: no weights here, or a file the index names is absent.
        ValueError: a file that cannot be read, a tensor stored twice, or one
            that the index places where it is not.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._place: dict[str, str] = {}
        listed = _read_index(folder / "model.safetensors.index.json")
        found = (path.name for path in folder.glob("*.safetensors"))
        for file in sorted(set(listed.values() if listed else found)):
            self._add(file)
        for name, file in listed.items():
            if self._place.get(name) != file:
                raise ValueError(
                    f"the index of {folder} places tensor {name!r} in {file}, "
                    "which does not hold it; fetch both again"
                )
        if not self._place:
            raise FileNotFoundError(f"no .safetensors file in {folder}")

    def _add(self, file: str) -> None:
        handle = self._files[file] = _open(self.folder / file)
        for name in sorted(handle.keys()):
            if name in self._place:
                raise ValueError(
                    f"tensor {name!r} is stored twice in {self.folder}: in "
                    f"{self._place[name]} and in {file}; remove one file"
                )
            self._place[name] = file

    def names(self) -> list[str]:
        return list(self._place)

    def __contains__(self, name: str) -> bool:
        return name in self._place

    def read(self, name: str) -> torch.Tensor:
        """The tensor as it is stored, on the CPU, mapped from its file."""
        found: torch.Tensor = self._files[self._place[name]].get_tensor(name)
        return found

    def shape(self, name: str) -> list[int]:
        """The tensor's shape, without reading it."""
        return list(self._slice(name).get_shape())

    def read_part(
        self, name: str, dim: int, start: int, stop: int
    ) -> torch.Tensor:
        """From start to stop along `dim` 0 or 1; the rest is not read."""
        where = (slice(None),) * dim + (slice(start, stop),)
        found: torch.Tensor = self._slice(name)[where]
        return found

    def _slice(self, name: str) -> Any:
        return self._files[self._place[name]].get_slice(name)


def _read_index(index: Path) -> dict[str, str]:
    """File by tensor; empty without an index."""
    if not index.exists():
        return {}
    try:
        return dict(json.loads(index.read_text())["weight_map"])
    except (ValueError, KeyError) as error:
        raise ValueError(f"{index} is damaged; fetch it again") from error


def _open(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing though the index names it")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(
            f"{path} is truncated or damaged{_first_cut(path)}; fetch it again"
        ) from error


def _first_cut(path: Path) -> str:
    """Name the first tensor that reaches past the end of its file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
        text = file.read(min(header, size))
    try:
        tensors = json.loads(text)
    except ValueError:
        return " in its header"
    tensors.pop("__metadata__", None)
    ends = {name: info["data_offsets"][1] for name, info in tensors.items()}
    cut = [name for name in ends if ends[name] > size - 8 - header]
    return f" from tensor {min(cut, key=ends.__getitem__)!r} on" if cut else ""
