"""Messages to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minisgl.core import SamplingParams


@dataclass
class BaseBackendMsg:
    """Anything the scheduler can be told."""


@dataclass
class ExitMsg(BaseBackendMsg):
    """Stop."""


@dataclass
class UserMsg(BaseBackendMsg):
    """A new request: its number, its prompt (int32 [n], CPU), its wishes."""

    uid: int
    input_ids: torch.Tensor
    sampling_params: SamplingParams


@dataclass
class AbortBackendMsg(BaseBackendMsg):
    """Nobody waits for this request any more; unknown numbers are ignored."""

    uid: int
