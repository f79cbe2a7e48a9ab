"""Sliding-window attention (Beltagy et al., arXiv:2004.05150; Mistral)."""

from __future__ import annotations

from itertools import islice

import torch

from minisgl.attention.torch_backend import Group, TorchBackend, TorchMetadata
from minisgl.core import Batch, Req
from minisgl.models import ModelConfig

__all__ = ["WindowBackend"]


class WindowBackend(TorchBackend):
    """Every token looks at the last `window` tokens, itself included."""

    def __init__(self, config: ModelConfig, window: int) -> None:
        super().__init__(config)
        self.window = window

    def prepare_metadata(self, batch: Batch) -> None:
        super().prepare_metadata(batch)
        assert isinstance(batch.attn_metadata, TorchMetadata)
        reqs = iter(batch.reqs)
        for group in batch.attn_metadata.groups:
            self._narrow(group, list(islice(reqs, len(group.slots))))

    def _narrow(self, group: Group, reqs: list[Req]) -> None:
        """Leave of `slots` and `seen` what the windows of the group need.

        With n new tokens a request, that is at most n + window - 1 slots for
        each: the window of the first new token, and what comes after it. A
        column is a place of its own for every request then, for their windows
        begin in different places. Columns without a token repeat a slot of the
        same request, and nobody sees them.
        """
        device, n = group.slots.device, reqs[0].extend_len
        width = min(group.slots.shape[1], n + self.window - 1)
        lengths = torch.tensor([req.device_len for req in reqs], device=device)
        first = (lengths - n - self.window + 1).clamp(min=0).unsqueeze(1)
        places = first + torch.arange(width, device=device)
        last = lengths.unsqueeze(1) - 1
        group.slots = group.slots.gather(1, places.minimum(last))
        own = lengths.unsqueeze(1) - n + torch.arange(n, device=device)
        behind = own.unsqueeze(2) - places.unsqueeze(1)
        seen = (behind >= 0) & (behind < self.window)
        group.seen = seen.unsqueeze(1).repeat(1, 1, self._group_size, 1)
