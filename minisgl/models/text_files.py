"""The tensors of the part of a model that reads and writes text."""

from __future__ import annotations

import torch

from minisgl.models.checkpoint import WeightFiles
from minisgl.utils import init_logger

logger = init_logger(__name__)

_TEXT = "model.language_model."
_OTHERS = {
    "model.visual.": "vision",
    "visual.": "vision",
    "mtp.": "draft layers",
}


class TextFiles:
    """Weight files of a model that may do more, by the names of one that does
    not: ``model.language_model.norm.weight`` is ``model.norm.weight`` here.

    Tensors of the other parts are left out, which is logged. Methods are those
    of `WeightFiles`.
    """

    def __init__(self, files: WeightFiles) -> None:
        self.folder, self._files = files.folder, files
        self._stored: dict[str, str] = {}
        others: dict[str, int] = {}
        for name in files.names():
            part = next((p for p in _OTHERS if name.startswith(p)), None)
            if part is None:
                self._stored[_plain(name)] = name
            else:
                what = _OTHERS[part]
                others[what] = others.get(what, 0) + 1
        if others:
            found = ", ".join(f"{what} ({n})" for what, n in others.items())
            logger.info(f"only text is served; tensors left out: {found}")

    def names(self) -> list[str]:
        return list(self._stored)

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def read(self, name: str) -> torch.Tensor:
        return self._files.read(self._stored[name])

    def shape(self, name: str) -> list[int]:
        return self._files.shape(self._stored[name])

    def read_part(
        self, name: str, dim: int, start: int, stop: int
    ) -> torch.Tensor:
        return self._files.read_part(self._stored[name], dim, start, stop)


def _plain(name: str) -> str:
    if name.startswith(_TEXT):
        return "model." + name.removeprefix(_TEXT)
    return name
