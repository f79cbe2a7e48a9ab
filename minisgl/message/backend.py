"""Messages to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minisgl.message.utils import deserialize_type, serialize_type
from minisgl.sampling_params import SamplingParams

if TYPE_CHECKING:
    import torch

SHUTTING_DOWN = "the server is shutting down"
"""What those hear who still wait when the server stops."""

__all__ = [
    "SHUTTING_DOWN",
    "AbortBackendMsg",
    "BaseBackendMsg",
    "BatchBackendMsg",
    "ExitMsg",
    "SamplingParams",
    "StatusBackendMsg",
    "UserMsg",
]


@dataclass
class BaseBackendMsg:
    """Anything the scheduler can be told."""

    def encoder(self) -> dict[str, Any]:
        """A dict for msgpack."""
        return serialize_type(self)

    @staticmethod
    def decoder(json: dict[str, Any]) -> BaseBackendMsg:
        """The message of such a dict; ValueError for any other."""
        found: BaseBackendMsg = deserialize_type(globals(), json)
        return found


@dataclass
class BatchBackendMsg(BaseBackendMsg):
    """Several at once."""

    data: list[BaseBackendMsg]


@dataclass
class ExitMsg(BaseBackendMsg):
    """Stop."""


@dataclass
class UserMsg(BaseBackendMsg):
    """A new request: its number, its prompt (int32 [n], CPU), its wishes.

    A sender may put a numpy array in the place of the tensor.
    """

    uid: int
    input_ids: torch.Tensor
    sampling_params: SamplingParams


@dataclass
class AbortBackendMsg(BaseBackendMsg):
    """Nobody waits for this request any more; unknown numbers are ignored."""

    uid: int


@dataclass
class StatusBackendMsg(BaseBackendMsg):
    """How is the scheduler? It answers under this number."""

    uid: int
