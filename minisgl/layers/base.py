"""BaseOP: named weights and a forward, and nothing else."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import torch

_STATE_DICT = dict[str, torch.Tensor]


def _concat_prefix(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


class BaseOP:
    """An operator whose attributes are its weights and its sub-operators.

    An attribute that is a tensor is a weight; one that is a BaseOP is a part.
    A leading underscore hides an attribute from both: tables, configuration.
    The dotted path of attributes is the name of the weight in a checkpoint.
    """

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute; each operator states its own shapes."""

    def _public(self) -> Iterator[tuple[str, Any]]:
        pairs = list(self.__dict__.items())
        return ((name, attr) for name, attr in pairs if name[0] != "_")

    def state_dict(
        self, *, prefix: str = "", result: _STATE_DICT | None = None
    ) -> _STATE_DICT:
        """All weights by name, added to `result` when it is given."""
        result = {} if result is None else result
        for name, attr in self._public():
            path = _concat_prefix(prefix, name)
            if isinstance(attr, torch.Tensor):
                result[path] = attr
            elif isinstance(attr, BaseOP):
                attr.state_dict(prefix=path, result=result)
        return result

    def load_state_dict(
        self,
        state_dict: _STATE_DICT,
        *,
        prefix: str = "",
        _internal: bool = False,
    ) -> None:
        """Take every weight out of `state_dict`, which must end up empty.

        The tensors are taken as they are, not copied; the ones they replace
        (on the meta device, most often) give only their shape and dtype.

        Raises:
            KeyError: a weight is missing, or one is left over.
            ValueError: a shape or dtype differs.
        """
        for name, attr in self._public():
            path = _concat_prefix(prefix, name)
            if isinstance(attr, torch.Tensor):
                setattr(self, name, _take(state_dict, path, like=attr))
            elif isinstance(attr, BaseOP):
                attr.load_state_dict(state_dict, prefix=path, _internal=True)
        if not _internal and state_dict:
            raise KeyError(
                f"the model has no weight {next(iter(state_dict))!r}"
            )


def _take(
    state_dict: _STATE_DICT, path: str, like: torch.Tensor
) -> torch.Tensor:
    if path not in state_dict:
        raise KeyError(f"the checkpoint has no weight {path!r}")
    found = state_dict.pop(path)
    if found.shape != like.shape or found.dtype != like.dtype:
        raise ValueError(
            f"weight {path!r}: the model wants {list(like.shape)} {like.dtype}, "
            f"the checkpoint has {list(found.shape)} {found.dtype}"
        )
    return found


class StateLessOP(BaseOP):
    """An operator without weights of its own, whatever tensors it holds."""

    def load_state_dict(
        self,
        state_dict: _STATE_DICT,
        *,
        prefix: str = "",
        _internal: bool = False,
    ) -> None:
        if not _internal and state_dict:
            raise KeyError(
                f"no weight belongs here: {next(iter(state_dict))!r}"
            )

    def state_dict(
        self, *, prefix: str = "", result: _STATE_DICT | None = None
    ) -> _STATE_DICT:
        return {} if result is None else result


T = TypeVar("T", bound=BaseOP)


class OPList(BaseOP, Generic[T]):
    """A row of operators, named 0, 1, 2, ... as checkpoints name layers."""

    def __init__(self, ops: list[T]) -> None:
        self.op_list = ops

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("an OPList is walked over, not called")

    def _public(self) -> Iterator[tuple[str, Any]]:
        return ((str(i), op) for i, op in enumerate(self.op_list))
